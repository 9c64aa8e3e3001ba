package dataloader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

// numbers is the data set 0, 1, …, n-1.
func numbers(n int) Dataset[int] {
	return Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
}

var errBad = errors.New("bad sample")

// failing is numbers(n), except that the bad ones fail with errBad.
func failing(n int, bad ...int) Dataset[int] { return &probe{n: n, bad: bad} }

// A probe is the data set 0, 1, …, n-1 under observation. It may be changed between loops.
type probe struct {
	n     int
	bad   []int                     // the samples that fail, with errBad
	takes func(i int) time.Duration // how long Get takes for sample i; nil means no time
	deaf  bool                      // Get does not look at its context meanwhile

	begun, running atomic.Int64 // the calls of Get so far, and those that have not returned
}

func (p *probe) Len() int { return p.n }

func (p *probe) Get(ctx context.Context, i int) (int, error) {
	p.begun.Add(1)
	p.running.Add(1)
	defer p.running.Add(-1)
	if p.takes != nil {
		if p.deaf {
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case <-time.After(p.takes(i)):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if slices.Contains(p.bad, i) {
		return 0, errBad
	}
	return i, nil
}

// always is the probe's time d for every sample.
func always(d time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return d }
}

// once is the probe's time d for sample 0, and no time for the others.
func once(d time.Duration) func(int) time.Duration {
	return func(i int) time.Duration { return d * time.Duration(max(0, 1-i)) }
}

// jitter is a random time of less than a microsecond for each sample, from a seed.
func jitter(seed uint64) func(int) time.Duration {
	return func(i int) time.Duration { return time.Duration(counter(seed, uint64(i)) % 1000) }
}

// dropBad is an OnError that drops what fails.
func dropBad(*SampleError) error { return nil }

// A batchGetter is a data set of n samples that only fetches batches.
type batchGetter[T any] struct {
	n   int
	get func(ctx context.Context, indices []int) ([]T, error)
}

func (b batchGetter[T]) Len() int                            { return b.n }
func (b batchGetter[T]) Get(context.Context, int) (T, error) { panic("Get is not to be called") }
func (b batchGetter[T]) GetBatch(ctx context.Context, indices []int) ([]T, error) {
	return b.get(ctx, indices)
}

// fixed is a sampler with the same order in every epoch.
func fixed(indices ...int) Sampler {
	return OrderFunc(len(indices), func(int) []int { return indices })
}

// fixedBatches is a batch sampler of a user's own, with the same batches in every epoch and without a String.
type fixedBatches [][]int

func (f fixedBatches) Len() int                      { return len(f) }
func (f fixedBatches) Batches(int) func(k int) []int { return func(k int) []int { return f[k] } }

// positions is an epoch of a sampler as a list.
func positions(s Sampler, epoch int) []int {
	order := s.Order(epoch)
	all := make([]int, s.Len())
	for pos := range all {
		all[pos] = order(pos)
	}
	return all
}

// upTo is the list 0, 1, …, n-1.
func upTo(n int) []int { return positions(Sequential(n), 0) }

// must returns v of a call that cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newLoader makes a loader of lists.
func newLoader[T any](t testing.TB, data Dataset[T], opts Options) *DataLoader[[]T] {
	t.Helper()
	l, err := New(data, List[T], opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// collect reads a sequence in which nothing may fail.
func collect[T any](t testing.TB, seq iter.Seq2[T, error]) []T {
	t.Helper()
	all := []T{}
	for v, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// batches is an epoch of a loader in which nothing may fail.
func batches[T any](t testing.TB, l *DataLoader[T], epoch int) []T {
	t.Helper()
	return collect(t, l.Epoch(t.Context(), epoch))
}

// samples is an epoch of a loader of lists, in one list.
func samples[T any](t testing.TB, l *DataLoader[[]T], epoch int) []T {
	t.Helper()
	return slices.Concat(batches(t, l, epoch)...)
}

// values is a whole data set in one list.
func values[T any](t testing.TB, data Dataset[T]) []T {
	t.Helper()
	return samples(t, newLoader(t, data, Options{}), 0)
}

// sorted is a sorted copy.
func sorted(s []int) []int { return slices.Sorted(slices.Values(s)) }

// outcomes reads a sequence and writes down values and errors, in words; of a stream's failed item only the cause.
func outcomes[T any](seq iter.Seq2[T, error]) []string {
	all := []string{}
	for v, err := range seq {
		if failed := (*SampleError)(nil); errors.As(err, &failed) && failed.Batch < 0 {
			err = failed.Err
		}
		if err != nil {
			text, _, _ := strings.Cut(err.Error(), "\n")
			all = append(all, "error "+text)
		} else {
			all = append(all, fmt.Sprint(v))
		}
	}
	return all
}

// equal fails the test if got is not want, in words.
func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Fatalf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// throughJSON is a cursor that was saved and loaded.
func throughJSON(t testing.TB, c Cursor) Cursor {
	t.Helper()
	return fromJSON(t, string(must(json.Marshal(c))))
}

// fromJSON is a cursor that was saved.
func fromJSON(t testing.TB, text string) (c Cursor) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// saysAll checks that err is there and names everything that it should.
func saysAll(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

// mustPanic checks that f panics with a message that says everything it should.
func mustPanic(t testing.TB, f func(), parts ...string) {
	t.Helper()
	saysAll(t, panicOf(f), parts...)
}

// errorOf is the error of a call.
func errorOf[T any](_ T, err error) error { return err }

// panicOf is what f panics with, as an error, or nil.
func panicOf(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic %v", r)
		}
	}()
	f()
	return nil
}

// eachWorkers runs a test for each number of workers, in a bubble of testing/synctest, which a goroutine that is left fails.
func eachWorkers(t *testing.T, numbers []int, test func(t *testing.T, workers int)) {
	t.Helper()
	for _, workers := range numbers {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, workers) })
		})
	}
}

// A refusal is what became of a call with arguments that make no sense, and what the error should say, between dots.
type refusal struct {
	err  error
	want string
}

// refused checks refusals. Each has the package's prefix once.
func refused(t *testing.T, all []refusal) {
	t.Helper()
	for _, r := range all {
		saysAll(t, r.err, strings.Split(r.want, " … ")...)
		equal(t, fmt.Sprint("prefixes of ", r.err), strings.Count(r.err.Error(), "dataloader: "), 1)
	}
}

// A loading is a loader, and what it gives in epoch 2, in words.
type loading struct {
	name    string
	data    Dataset[int]
	collate Collate[int, []int] // nil means List
	opts    Options
	want    string
}

// check checks what comes with 0 to 3 workers, or from least on, and several windows.
func (l loading) check(t *testing.T, least int) {
	t.Helper()
	for _, engine := range [][2]int{{0, 0}, {1, 1}, {1, 3}, {2, 0}, {3, 1}, {4, 2}} {
		if engine[0] >= least {
			l.checkWith(t, engine[0], engine[1], max(least, 3-engine[0]))
		}
	}
}

// loader returns the loader with so many workers.
func (l loading) loader(workers, prefetch int) *DataLoader[[]int] {
	if l.collate == nil {
		l.collate = List[int]
	}
	l.opts.Workers, l.opts.Prefetch = workers, prefetch
	return must(New(l.data, l.collate, l.opts))
}

// checkWith checks what comes with so many workers: as a stream, resumed everywhere with other workers, and by Batch.
func (l loading) checkWith(t *testing.T, workers, prefetch, other int) {
	t.Helper()
	loader, resumed := l.loader(workers, prefetch), l.loader(other, 0)
	what := fmt.Sprintf("%s: %+v, workers %d, prefetch %d", l.name, l.opts, workers, prefetch)
	got := checkStream(t, loader.Stream(), 2)
	equal(t, what, got, l.want)
	synctest.Test(t, func(t *testing.T) {
		k := 0
		for item, err := range loader.Stream()(t.Context(), Cursor{Epoch: 2}) {
			if failed := item.Err; err != nil || failed != nil && !errors.As(failed, new(*SampleError)) {
				t.Errorf("%s: %v, or %v is no SampleError", what, err, failed)
			}
			if l.opts.OnError == nil && !strings.Contains(l.want, errGoexit.Error()) {
				equal(t, what+": Batch", outcomes(one(loader.Batch(t.Context(), 2, k))), got[k:k+1])
			}
			k++
			equal(t, fmt.Sprint(what, ": after ", k, " with workers ", other), outcomes(resumed.Run(t.Context(), ptr(throughJSON(t, item.Next)))), got[k:])
		}
		if l.opts.OnError == nil { // which leaves out whole batches
			equal(t, what+": Len", loader.Len(), k)
		}
	})
}

// expect is what a loader has to give from a position on, as DistributedSampler's documentation describes it.
func expect(order []int, from int, o Options) [][]int {
	count, rest := max(o.Shard.Count, 1), order[from:]
	for i := 0; len(rest)%count != 0 && o.Tail == PadTail; i++ {
		rest = append(slices.Clip(rest), order[i%len(order)])
	}
	if o.Tail == DropTail {
		rest = rest[:len(rest)/count*count]
	}
	var mine []int
	for i := o.Shard.Index; i < len(rest); i += count {
		mine = append(mine, rest[i])
	}
	batches := slices.Collect(slices.Chunk(mine, max(o.BatchSize, 1)))
	if k := len(batches) - 1; k >= 0 && o.DropLast && len(batches[k]) < o.BatchSize {
		batches = batches[:k]
	}
	return batches
}

// zScore says by how many standard deviations the chi-square statistic of counts misses its mean. Each count should be in
// proportion to its weight; without weights all should be equal. What has weight 0 must not occur.
func zScore(t testing.TB, counts []int, weights ...float64) float64 {
	t.Helper()
	if weights == nil {
		weights = slices.Repeat([]float64{1}, len(counts))
	}
	draws, total, largest := 0.0, 0.0, slices.Max(weights)
	for i, c := range counts {
		draws, total = draws+float64(c), total+weights[i]/largest // which is finite
	}
	chi, freedom := 0.0, -1.0
	for i, c := range counts {
		if mean := draws * (weights[i] / largest) / total; mean > 0 {
			chi += (float64(c) - mean) * (float64(c) - mean) / mean
			freedom++
		} else if c > 0 {
			t.Error("something has occurred that cannot")
		}
	}
	return (chi - freedom) / math.Sqrt(2*max(1, freedom))
}

// tree is a file system with folders at several depths.
func tree() fs.FS {
	files := fstest.MapFS{}
	for _, name := range []string{"a.txt", "b.png", "cat/1.png", "cat/2.png", "cat/old/0.png", "cat/.hidden", "dog/1.png", "dog/x/y/z.txt", ".git/config"} {
		files[name] = &fstest.MapFile{Data: []byte("in " + name)}
	}
	return files
}

// closedFS is a file system of which the folder dog cannot be read.
type closedFS struct{ fs.FS }

func (c closedFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == "dog" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return fs.ReadDir(c.FS, name)
}

// augmented is a data set of random numbers: all 0 if each call of Rand made a new generator, or WithSeed had no effect.
func augmented() Dataset[int] {
	return Func(24, func(ctx context.Context, i int) (int, error) {
		return (Rand(ctx).Int() ^ Rand(ctx).Int()) * (Rand(WithSeed(ctx, 1)).Int() ^ Rand(WithSeed(ctx, 2)).Int()), nil
	})
}

// undo is the inverse of feistel.at: the rounds in reverse, subtracting.
func undo(f *feistel, x uint64) uint64 {
	for {
		left, right := x>>f.k, x&(1<<f.k-1)
		for j := len(f.keys) - 2; j >= 0; j -= 2 {
			right ^= scramble(left^f.keys[j+1]) >> 32 & (1<<f.k - 1)
			add, _ := bits.Mul64(scramble(right^f.keys[j]), f.a)
			left = (left + f.a - add) % f.a
		}
		if x = left<<f.k | right; x < f.n {
			return x
		}
	}
}
