package dataloader

// Tests are two thirds of the package. Like the files that it tests, this one
// is read in two halves, and has parts with sections. The heading of a part is
// a line that begins "// # ", and that of a section one that begins "// ## ",
// so grep '^// #' lists all headings:
//
//	# Helpers
//	    data sets, samplers and sequences under observation, and how results
//	    are compared
//	# The loaders of the lesson
//	# The tests of the first reading
//	    the page of the lesson; the classic loader, file by file
//
// After the line "Second reading":
//
//	# More helpers
//	    for streams, and for shards
//	# The Examples
//	    what a reader wants to do, compiled and run; README.md lists the
//	    recipes by what they are for
//	# README.md, the lesson, and batches that are served
//	# The tests of the second reading
//	    files and folders; streams, in the same order; Progress, profiles
//	# The tests of tar shards
//	    the stream, the web, the index, the writer
//
// The first half needs nothing of the second, because testdata/classic.go
// writes it with the classic loader. What it checks of streams, the second half
// adds by a variable: checkAsStream, dyingStreams, runFromStream.
//
// Each row of a table is a subtest where it has a name or can have one, so that
// it can be run alone: runRow names it.
//
// Workers: 0 is the specification: whatever a loader or a stream does with
// workers is compared with it. checkStream puts a stream through everything
// that its cursors promise. Time and goroutines are tested in bubbles of
// testing/synctest, where time is exact and a goroutine that is left over fails
// the test. Files in testdata are written again by go test -update.
//
// What is new needs more than its own test:
//
//	a stage    a row in stages, in TestStreams and in TestBadStreams; in
//	           savedStreams, with lines in testdata/cursors.json; in
//	           TestRefusedCursors, TestReadAhead, TestResumes and
//	           TestStreamsThatDie, if it has a state, reads ahead, reads again
//	           or calls a function. If it reads again, it calls
//	           stageState.checkReread. If it can put ranks out of step, its
//	           ranks are parted, and it has rows in rankStages and TestOwners.
//	           If it joins sources, it has rows in TestJoinedSources. Six lists
//	           name the stages: the comments at Stream, at Run (those that
//	           cannot know the last item), at Stream.Shard (the ranks), above
//	           streamOf (the two kinds), at stageState (what N counts), and
//	           the lesson's section Streams
//	a sampler  a row in TestGoldenOrders and in TestBadSamplers; in
//	           TestBadOptions, for data of another length; a name in cursors
//	           that tells it from every other order, as in TestRefusedCursors;
//	           the sentence at Sampler
//	an option  its zero value, which changes nothing, and what it excludes, in
//	           TestBadOptions; if it changes what a rank loads, expect and
//	           TestResumeExhaustive; if a cursor fits only one value of it,
//	           TestRefusedCursors and savedStreams
//	each       an Example, its rows in testdata/recipes/README.md, and in
//	           README.md: "Coming from PyTorch"
//
// What is changed keeps its name in cursors only if every saved cursor still
// resumes with exactly the items that were left. If an order or a draw changes,
// or what a cursor's fields mean:
//
//	its name   gets ", version 2", or the next number, as Shuffle's and Mix's
//	           have
//	old lines  of testdata/cursors.json with that name, also nested, stay. They
//	           must be refused now: put "refused …" into their rest
//	new lines  are added, as for a new stage; an order has new numbers in
//	           TestGoldenOrders, too

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"encoding/base64"
	"encoding/binary"
	"encoding/csv"
	"encoding/gob"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"hash/crc32"
	"html"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"io/fs"
	"iter"
	"log"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode"
	"weak"
)

// # Helpers

// numbers is the data set 0, 1, …, n-1.
func numbers(n int) Dataset[int] { return Func(n, quick[int]) }

var errBad = errors.New("bad sample")

// failing is numbers(n), except that the bad ones fail with errBad.
func failing(n int, bad ...int) Dataset[int] { return &probe{n: n, bad: bad} }

// A probe is the data set 0, 1, …, n-1 under observation. It may be changed
// between loops.
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
func always(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// jitter is a random time of less than a microsecond for each sample, from a
// seed.
func jitter(seed uint64) func(int) time.Duration {
	return func(i int) time.Duration { return time.Duration(counter(seed, uint64(i)) % 1000) }
}

// dropBad is an OnError that drops what fails.
func dropBad(*SampleError) error { return nil }

// An atOnce stands for a data set of n samples whose batches a loading makes
// with NewBatchFunc.
type atOnce struct {
	Dataset[int] // nil
	n            int
	load         func(ctx context.Context, dst, indices []int) ([]int, error)
}

func (b atOnce) Len() int { return b.n }

// fixedBatches is a batch sampler of a user's own, with the same batches in
// every epoch and without a String.
type fixedBatches [][]int

func (f fixedBatches) Len() int { return len(f) }

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
	failIf(t, err != nil, "%v", err)
	return l
}

// collect reads a sequence in which nothing may fail.
func collect[T any](t testing.TB, seq iter.Seq2[T, error]) []T {
	t.Helper()
	all := []T{}
	for v, err := range seq {
		failIf(t, err != nil, "%v", err)
		all = append(all, v)
	}
	return all
}

// readFirst reads the first pair of a sequence, and leaves the sequence.
func readFirst[T any](seq iter.Seq2[T, error]) {
	for range seq {
		break
	}
}

// batches is an epoch of a loader in which nothing may fail.
func batches[T any](t testing.TB, l *DataLoader[T], epoch int) []T {
	t.Helper()
	return collect(t, l.Epoch(t.Context(), epoch))
}

// samples is an epoch of a loader of lists, in one list.
func samples[T any](t testing.TB, l *DataLoader[[]T], epoch int) []T {
	t.Helper()
	return append([]T{}, slices.Concat(batches(t, l, epoch)...)...)
}

// values is a whole data set in one list.
func values[T any](t testing.TB, data Dataset[T]) []T {
	t.Helper()
	return samples(t, newLoader(t, data, Options{}), 0)
}

// sorted is a sorted copy.
func sorted[T cmp.Ordered](s []T) []T { return slices.Sorted(slices.Values(s)) }

// distinct counts the different numbers in s.
func distinct(s []int) int { return len(slices.Compact(sorted(s))) }

// unlessShort is n or, with -short, short.
func unlessShort(n, short int) int {
	if testing.Short() {
		return short
	}
	return n
}

// places matches the place in the text of a PanicError, which outcomes leaves
// out.
var places = regexp.MustCompile(` \(\w+\.go:\d+\)`)

// outcomes reads a sequence and writes down values and errors, in words; of a
// stream's failed item only the cause. A cursor is "refused" with an ErrCursor.
func outcomes[T any](seq iter.Seq2[T, error]) []string {
	all := []string{}
	for v, err := range seq {
		failed := (*SampleError)(nil)
		switch ok := errors.As(err, &failed); {
		case ok && failed.Index < -1:
			err = fmt.Errorf("an Index of %d", failed.Index)
		case ok && failed.Batch < 0:
			err = failed.Err
		}
		if err != nil {
			text, _, _ := strings.Cut(places.ReplaceAllString(err.Error(), ""), "\n")
			all = append(all, map[bool]string{false: "error ", true: "refused "}[errors.Is(err, ErrCursor)]+text)
		} else {
			all = append(all, fmt.Sprint(v))
		}
	}
	return all
}

// equal fails the test if got is not want. A nil slice is not an empty one.
func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	g, w := fmt.Sprint(got), fmt.Sprint(want)
	if g == w {
		g, w = fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", want)
	}
	t.Fatalf("%s:\n got %s\nwant %s", what, g, w)
}

// failIf fails the test, as panicIf panics, if something is wrong.
func failIf(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Fatalf(format, args...)
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
	err := json.Unmarshal([]byte(text), &c)
	failIf(t, err != nil, "%v", err)
	return c
}

// saysAll checks that err is there and names everything that it should: the
// parts, between which " … " may stand too, or, after "= ", the whole text.
func saysAll(t testing.TB, err error, parts ...string) {
	t.Helper()
	failIf(t, err == nil, "no error, want one that says %q", parts)
	if all, exact := strings.CutPrefix(parts[0], "= "); exact {
		equal(t, "error", err.Error(), all)
	}
	for _, part := range strings.Split(strings.TrimPrefix(strings.Join(parts, " … "), "= "), " … ") {
		failIf(t, !strings.Contains(err.Error(), part), "error %q does not say %q", err, part)
	}
}

// errorOf is the error of a call.
func errorOf[T any](_ T, err error) error { return err }

// isSampleError reports whether err is a *SampleError, or is because of one.
func isSampleError(err error) bool { return errors.As(err, new(*SampleError)) }

// because checks the cause of err, and returns err. Causes are compared as
// values: their texts differ between systems.
func because(t testing.TB, cause, err error) error {
	t.Helper()
	failIf(t, !errors.Is(err, cause), "%v; this is not because of %v", err, cause)
	return err
}

// allocates checks that f allocates at most so many bytes.
func allocates(t testing.TB, what string, most int, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > uint64(most) {
		t.Errorf("%s: %d bytes allocated, want at most %d", what, after.TotalAlloc-before.TotalAlloc, most)
	}
}

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

// inBubble runs a test in a bubble of testing/synctest, where time is fake, and
// exact. A goroutine that is left over fails the test. If all goroutines wait
// for ever, the test fails with a line for each that says where it waits,
// instead of the stacks.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	err := panicOf(func() { synctest.Test(t, test) })
	if err == nil {
		return
	}
	stacks := make([]byte, 1<<20)
	all, latest, waiting := inBubbles.FindAllSubmatch(stacks[:runtime.Stack(stacks, true)], -1), 0, ""
	for _, match := range all {
		latest = max(latest, must(strconv.Atoi(string(match[2])))) // the goroutines of bubbles before may still wait
	}
	for _, match := range all {
		if string(match[2]) == strconv.Itoa(latest) {
			waiting += fmt.Sprintf("\n%s]: %s", match[1], match[3])
		}
	}
	t.Fatalf("%v%s", err, waiting)
}

// inBubbles matches the stack of a goroutine that waits in a bubble: how, in
// which, and the first line of this package.
var inBubbles = regexp.MustCompile(`(goroutine \d+ \[.*) \(durable\), synctest bubble (\d+)\]:\n(?:.+\n)*?` +
	`.*\b((?:dataset|sampler|batch|worker|dataloader|tar|dataloader_test)\.go:\d+)`)

// rowWords matches the words of the name of a row.
var rowWords = regexp.MustCompile(`[\pL\d_.-]+`)

// runRow runs a row of a table as a subtest. Its name is made of a text that
// tells the row from others: the words, if there are any, joined by
// underscores, up to 40 bytes.
func runRow(t *testing.T, text string, test func(t *testing.T)) {
	t.Helper()
	name := cmp.Or(strings.Join(rowWords.FindAllString(text, -1), "_"), text)
	t.Run(name[:min(len(name), 40)], test)
}

// runRowInBubble runs a row in a bubble.
func runRowInBubble(t *testing.T, text string, test func(t *testing.T)) {
	t.Helper()
	runRow(t, text, func(t *testing.T) {
		t.Helper()
		inBubble(t, test)
	})
}

// eachWorkers runs a test in a bubble for each number of workers.
func eachWorkers(t *testing.T, numbers []int, test func(t *testing.T, workers int)) {
	t.Helper()
	for _, workers := range numbers {
		runRowInBubble(t, fmt.Sprint(workers, " workers"), func(t *testing.T) { test(t, workers) })
	}
}

// A refusal is what became of a call with arguments that make no sense, and
// what the error should say, between dots.
type refusal struct {
	err  error
	want string
}

// check checks the error, which has the package's prefix once, or that there is
// none.
func (r refusal) check(t *testing.T) {
	t.Helper()
	if r.want == "" {
		equal(t, "error", r.err, nil)
		return
	}
	saysAll(t, r.err, r.want)
	equal(t, "prefixes", strings.Count(r.err.Error(), "dataloader: "), 1)
}

// refused checks refusals.
func refused(t *testing.T, all []refusal) {
	t.Helper()
	for _, r := range all {
		runRow(t, cmp.Or(r.want, "no error"), r.check)
	}
}

// panics checks that each of the calls panics, with what its key says, between
// dots, after the package's prefix.
func panics(t *testing.T, calls map[string]func()) {
	t.Helper()
	for says, call := range calls {
		runRow(t, says, refusal{panicOf(call), "panic dataloader: " + says}.check)
	}
}

// A loading is a loader, and what it yields in epoch 2, in words: # stands for
// "error dataloader: epoch 2, batch ".
type loading struct {
	name    string
	data    Dataset[int]
	collate Collate[int, []int] // nil means List
	opts    Options
	want    string
}

// check checks what comes with 0 to 3 workers, or from least on, and several
// windows.
func (l loading) check(t *testing.T, least int) {
	t.Helper()
	runRow(t, l.name, func(t *testing.T) {
		for _, engine := range [][2]int{{0, 0}, {1, 1}, {1, 3}, {2, 0}, {3, 1}, {4, 2}} {
			if engine[0] >= least {
				l.checkWith(t, engine[0], engine[1], max(least, 3-engine[0]))
			}
		}
	})
}

// loader returns the loader with so many workers.
func (l loading) loader(workers, prefetch int) *DataLoader[[]int] {
	if l.collate == nil {
		l.collate = List[int]
	}
	l.opts.Workers, l.opts.Prefetch = workers, prefetch
	if b, ok := l.data.(atOnce); ok {
		return must(NewBatchFunc(b.n, b.load, l.opts))
	}
	return must(New(l.data, l.collate, l.opts))
}

// checkWith checks what comes with so many workers: resumed everywhere with
// other workers, by Batch, and as a stream.
func (l loading) checkWith(t *testing.T, workers, prefetch, other int) {
	t.Helper()
	loader, resumed := l.loader(workers, prefetch), l.loader(other, 0)
	what := fmt.Sprintf("%+v, workers %d, prefetch %d", l.opts, workers, prefetch)
	inBubble(t, func(t *testing.T) {
		got := outcomes(loader.Epoch(t.Context(), 2))
		equal(t, what, fmt.Sprint(got), strings.ReplaceAll(l.want, "#", "error dataloader: epoch 2, batch "))
		k := 0
		for item, err := range loader.items(t.Context(), Cursor{Epoch: 2}) {
			sound := item.Err == nil || isSampleError(item.Err)
			failIf(t, err != nil || !sound, "%s: %v, or %v is no SampleError", what, err, item.Err)
			if l.opts.OnError == nil && !strings.Contains(l.want, errGoexit.Error()) {
				equal(t, what+": Batch", outcomes(one(loader.Batch(t.Context(), 2, k))), got[k:k+1])
			}
			k++
			rest := outcomes(resumed.Run(t.Context(), ptr(throughJSON(t, item.Next))))
			equal(t, fmt.Sprint(what, ": after ", k, " with workers ", other), rest, got[k:])
		}
		if l.opts.OnError == nil { // which leaves out whole batches
			equal(t, what+": Len", loader.Len(), k)
		}
	})
	if checkAsStream != nil {
		equal(t, what+": as a stream", fmt.Sprint(checkAsStream(t, loader, 2)), strings.ReplaceAll(l.want, "#", "error dataloader: epoch 2, batch "))
	}
}

// checkAsStream puts an epoch of a loader through everything that a stream
// promises, and returns the epoch's outcomes. The second reading sets it.
var checkAsStream func(t *testing.T, l *DataLoader[[]int], epoch int) []string

// expect is what a loader has to give from a position on, as
// DistributedSampler's documentation describes it.
func expect(order []int, from int, o Options) [][]int {
	count, rest := max(o.Rank.Count, 1), order[from:]
	for i := 0; len(rest)%count != 0 && o.Tail == PadTail; i++ {
		rest = append(slices.Clip(rest), order[i%len(order)])
	}
	if o.Tail == DropTail {
		rest = rest[:len(rest)/count*count]
	}
	var mine []int
	for i := o.Rank.Index; i < len(rest); i += count {
		mine = append(mine, rest[i])
	}
	batches := slices.AppendSeq([][]int{}, slices.Chunk(mine, max(o.BatchSize, 1)))
	if k := len(batches) - 1; k >= 0 && o.DropLast && len(batches[k]) < o.BatchSize {
		batches = batches[:k]
	}
	return batches
}

// noBatch reports whether the options leave no rank a batch of n samples. Rank
// 0 has the most.
func noBatch(n int, o Options) bool {
	o.Rank.Index = 0
	return n > 0 && len(expect(upTo(n), 0, o)) == 0
}

// zScore says by how many standard deviations the chi-square statistic of
// counts misses its mean. Each count should be in proportion to its weight.
// What has weight 0 must not occur.
func zScore(t testing.TB, counts []int, weights ...float64) float64 {
	t.Helper()
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

// augmented is a data set of random numbers: all 0 if each call of Rand made a
// new generator, or WithSeed had no effect.
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

// alive collects garbage, and counts the values that are left.
func alive[T any](all []weak.Pointer[T]) int {
	runtime.GC()
	return len(slices.DeleteFunc(slices.Clone(all), func(p weak.Pointer[T]) bool { return p.Value() == nil }))
}

// quick returns v.
func quick[T any](_ context.Context, v T) (T, error) { return v, nil }

// one is a sequence of one pair.
func one[T any](v T, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) { yield(v, err) }
}

// ptr is a pointer to a copy of v.
func ptr[T any](v T) *T { return &v }

// ending is the error of a sequence that begins and ends with it, or nil.
func ending[T any](seq iter.Seq2[T, error]) (err error) {
	pairs := 0
	for _, err = range seq {
		pairs++
	}
	if pairs != 1 {
		return nil
	}
	return err
}

// checkDataset checks what a loader relies on: a sample is the same whenever it
// is fetched, and stays as it is while others are fetched. Each sample is
// fetched twice, first one after the other, then in another order from four
// goroutines. All are kept meanwhile. The error names a sample that has changed
// or differs. Rand draws the same numbers both times. If the data are large,
// check a Subset. A sample must not contain itself.
func checkDataset[T any](data Dataset[T]) error {
	type fetched struct {
		sample T
		err    error
		was    string // what it held when it was fetched
	}
	n := data.Len()
	all := make([]fetched, 2*n)
	for pass := range 2 {
		order, goroutines := []Sampler{Sequential(n), Random(n, 1)}[pass].Order(0), 1+3*pass
		var running sync.WaitGroup
		for g := range goroutines {
			running.Go(func() {
				for pos := g; pos < n; pos += goroutines {
					ctx := WithSeed(context.Background(), uint64(order(pos)))
					var sample T
					err := try(func() (err error) {
						sample, err = data.Get(ctx, order(pos))
						return err
					})
					all[pass*n+order(pos)] = fetched{sample, err, contents(sample, err)}
				}
			})
		}
		running.Wait()
		for k, f := range all { // also before several goroutines would race for that memory
			if f.was != "" && contents(f.sample, f.err) != f.was {
				return fmt.Errorf("sample %d has changed while others were fetched: Get reuses memory", k%n)
			}
		}
	}
	for i := range n {
		if all[i].was != all[n+i].was {
			return fmt.Errorf("sample %d differs when it is fetched again, in another order, or from several goroutines", i)
		}
	}
	return nil
}

// contents is a digest of a sample, with all that is behind its pointers, and
// of an error.
func contents(sample any, err error) string {
	h := sha256.New()
	writeContents(h, reflect.ValueOf(sample))
	fmt.Fprint(h, err)
	return string(h.Sum(nil))
}

// writeContents writes what v holds. Functions and channels are left out.
func writeContents(w io.Writer, v reflect.Value) {
	switch v.Kind() {
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
	case reflect.Pointer, reflect.Interface:
		writeContents(w, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			writeContents(w, v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		fmt.Fprintln(w, v.Len())
		for i := range v.Len() {
			writeContents(w, v.Index(i))
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		for _, key := range keys {
			fmt.Fprintln(w, key)
			writeContents(w, v.MapIndex(key))
		}
	default:
		fmt.Fprintln(w, v)
	}
}

var update = flag.Bool("update", false, "rewrite the files in testdata")

// # The loaders of the lesson

// A data set, a loader and the training loop, with a checkpoint after every
// step.
func Example() {
	squares := Func(10, func(ctx context.Context, i int) (float64, error) {
		return float64(i * i), nil // open, read, decode
	})
	loader, err := New(squares, List[float64], Options{
		BatchSize: 4, Shuffle: true, Seed: 1, Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	var at Cursor
	for at.Epoch < 2 {
		for batch, err := range loader.Run(context.Background(), &at) {
			if err != nil {
				log.Fatal(err)
			}
			checkpoint, err := json.Marshal(at)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(batch, string(checkpoint))
		}
	}
	// Output:
	// [4 0 81 49] {"epoch":0,"pos":4,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [1 25 16 36] {"epoch":0,"pos":8,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [64 9] {"epoch":0,"pos":10,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [36 25 49 1] {"epoch":1,"pos":4,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [81 4 64 0] {"epoch":1,"pos":8,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [16 9] {"epoch":1,"pos":10,"state":{"by":"Random(10, seed 1)","seed":1}}
}

// Without workers: the calling goroutine loads each batch when the loop asks
// for it.
func ExampleNew_oneProcess() {
	features := make(Slice[Tensor[float32]], 20)
	for i := range features {
		features[i] = Tensor[float32]{Data: make([]float32, 100), Shape: []int{100}}
	}
	labels := Func(20, func(ctx context.Context, i int) (int, error) { return i % 3, nil })
	data, err := Pairs(features, labels)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(data, CollatePair(Stack[float32], List[int]), Options{BatchSize: 8})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(loader.Len(), "batches")
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.First.Shape, batch.Second)
	}
	// Output:
	// 3 batches
	// [8 100] [0 1 2 0 1 2 0 1]
	// [8 100] [2 0 1 2 0 1 2 0]
	// [4 100] [1 2 0 1]
}

// Out of order: workers load, and a batch is handed over as soon as it is
// ready. Batch 0 is slow and comes last.
func ExampleNew_outOfOrder() {
	others := make(chan bool)
	slow := Func(6, func(ctx context.Context, i int) (int, error) {
		if i == 0 {
			<-others // sample 0 takes as long as all the others
		}
		return i, nil
	})
	loader, err := New(slow, List[int], Options{Workers: 2, Unordered: true})
	if err != nil {
		log.Fatal(err)
	}
	received := 0
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(batch)
		if received++; received == 5 {
			close(others)
		}
	}
	// Output: [1][2][3][4][5][0]
}

// In order, the default: workers load in any order, and batches are handed over
// in the sampler's order.
func ExampleNew_inOrder() {
	others := make(chan bool, 3)
	slow := Func(6, func(ctx context.Context, i int) (int, error) {
		switch i {
		case 0: // waits for the three batches that may be loaded ahead of it
			<-others
			<-others
			<-others
		case 1, 2, 3:
			others <- true
		}
		return i, nil
	})
	loader, err := New(slow, List[int], Options{Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(batch)
	}
	// Output: [0][1][2][3][4][5]
}

// The first of five loaders, each the one before with a few lines changed. It
// has no goroutine: it loads and trains in turn. load makes batch k of the
// three decisions: what sample i is, in which order samples come, and how they
// become a batch, here their sum. The other four have a load that says more of
// time.
func Example_inTenLines() {
	loader := func(n int, load func(k int) int) iter.Seq2[int, int] {
		return func(yield func(k, batch int) bool) {
			for k := range n {
				if !yield(k, load(k)) {
					return
				}
			}
		}
	}

	data := func(i int) int { return i * i }
	order := rand.New(rand.NewPCG(1, 0)).Perm(6)
	collate := func(samples []int) (batch int) {
		for _, sample := range samples {
			batch += sample
		}
		return batch
	}
	load := func(k int) int {
		fmt.Print("load ", k, ", ")
		var samples []int
		for _, i := range order[2*k : 2*k+2] {
			samples = append(samples, data(i))
		}
		return collate(samples)
	}
	for k, batch := range loader(3, load) {
		fmt.Println("train on", k, batch)
	}
	// Output:
	// load 0, train on 0 26
	// load 1, train on 1 20
	// load 2, train on 2 9
}

// The second of five loaders: one goroutine loads while the loop trains. It
// gets tasks from a queue, and puts results into another. Each queue has room
// for window, the most batches in flight, so neither a send of the loop nor one
// of the worker blocks. When the loop is left, the worker loads what is still
// queued, finds its queue closed, and ends.
func Example_oneWorker() {
	type result struct{ k, batch int }
	loader := func(n, window int, load func(k int) int) iter.Seq2[int, int] {
		return func(yield func(k, batch int) bool) {
			tasks, results := make(chan int, window), make(chan result, window)
			var running sync.WaitGroup
			defer running.Wait() // then wait for it
			defer close(tasks)   // first the worker hears that there is no more work
			running.Go(func() {
				for k := range tasks {
					results <- result{k, load(k)}
				}
			})
			send := 0
			refill := func() {
				if send < n {
					tasks <- send
					send++
				}
			}
			for range window {
				refill()
			}
			for range n {
				r := <-results
				refill() // before the loop body runs, so that the worker is busy meanwhile
				if !yield(r.k, r.batch) {
					return
				}
			}
		}
	}

	loaded := make(chan int, 10)
	load := func(k int) int {
		loaded <- k
		return k * k
	}
	for k, batch := range loader(5, 2, load) {
		fmt.Print("train on ", k, " ", batch)
		if k+2 < 5 {
			for <-loaded != k+2 {
			}
			fmt.Print(", meanwhile ", k+2, " is loaded")
		}
		fmt.Println()
	}
	// Output:
	// train on 0 0, meanwhile 2 is loaded
	// train on 1 1, meanwhile 3 is loaded
	// train on 2 4, meanwhile 4 is loaded
	// train on 3 9
	// train on 4 16
}

// The third of five loaders: several workers, out of order. One line has been
// added to the second, marked with "new". The workers share the queues. Results
// come as they are ready, so the order depends on timing. A slow batch keeps a
// worker and a place in the window, and holds up no other.
func Example_outOfOrder() {
	type result struct{ k, batch int }
	loader := func(n, workers, window int, load func(k int) int) iter.Seq2[int, int] {
		return func(yield func(k, batch int) bool) {
			tasks, results := make(chan int, window), make(chan result, window)
			var running sync.WaitGroup
			defer running.Wait()
			defer close(tasks)
			for range workers { // new
				running.Go(func() {
					for k := range tasks {
						results <- result{k, load(k)}
					}
				})
			}
			send := 0
			refill := func() {
				if send < n {
					tasks <- send
					send++
				}
			}
			for range window {
				refill()
			}
			for range n {
				r := <-results
				refill()
				if !yield(r.k, r.batch) {
					return
				}
			}
		}
	}

	trained := make(chan bool)
	load := func(k int) int {
		if k == 0 {
			<-trained // on all others
		}
		return k * k
	}
	others := 0
	for k := range loader(20, 3, 6, load) {
		if k == 0 {
			fmt.Println("batch 0 comes after others:", others)
		} else if others++; others == 19 {
			close(trained)
		}
	}
	// Output:
	// batch 0 comes after others: 19
}

// The fourth of five loaders, in fifty lines: several workers, in order. The
// lines that keep the order are marked: a result that has come before its turn
// waits in a cache. The engine in worker.go is this loop, plus a context that
// stops the workers and survival of panics and Goexit, as in
// Example_errorsAndBreaks, a reader for streams, and slots that are reused. The
// batch in the body keeps its slot, so there are window + 1 slots, and the
// cache is a flag for each. Here no result lies in a slot, and the cache has
// room for window results.
//
// At the head of the loop over recv, every k from recv to send-1 is in exactly
// one place: in the queue tasks, with a worker, in the queue results, or in the
// cache. There are at most window of them, and each queue has room for window.
// So no send ever blocks. While the body has batch recv, the same is true of
// the k from recv+1 to send-1. The engine counts recv before the body.
func Example_inFiftyLines() {
	type result struct{ k, batch int }
	loader := func(n, workers, window int, load func(k int) int) iter.Seq2[int, int] {
		return func(yield func(k, batch int) bool) {
			tasks, results := make(chan int, window), make(chan result, window)
			var running sync.WaitGroup
			defer running.Wait() // then wait for them
			defer close(tasks)   // first the workers hear that there is no more work
			for range workers {
				running.Go(func() {
					for k := range tasks {
						results <- result{k, load(k)}
					}
				})
			}
			send := 0
			refill := func() {
				if send < n {
					tasks <- send
					send++
				}
			}
			for range window {
				refill()
			}
			cache := make([]*result, window) // order: results that came before their turn
			for recv := range n {            // here recv <= send <= recv+window
				for cache[recv%window] == nil { // order
					r := <-results
					cache[r.k%window] = &r // order
				}
				r := cache[recv%window]  // order
				cache[recv%window] = nil // order
				// Before the loop body runs, so that the workers are busy
				// meanwhile.
				refill()
				if !yield(r.k, r.batch) {
					return
				}
			}
		}
	}

	// Batch 0 waits until five others have been loaded. Nothing else is loaded
	// until batch 0 has come.
	var loaded, working atomic.Int64
	others := make(chan int64, 100)
	load := func(k int) int {
		working.Add(1)
		defer working.Add(-1)
		if k == 0 {
			for range 5 {
				<-others
			}
			fmt.Println("loaded before batch 0:", loaded.Load())
		}
		others <- loaded.Add(1)
		return k * k
	}
	for k, batch := range loader(100, 3, 6, load) {
		fmt.Println(k, batch)
		if k == 6 {
			break // the workers finish what is queued, and end
		}
	}
	fmt.Println("working after the loop:", working.Load(), "loaded:", loaded.Load())
	// Output:
	// loaded before batch 0: 5
	// 0 0
	// 1 1
	// 2 4
	// 3 9
	// 4 16
	// 5 25
	// 6 36
	// working after the loop: 0 loaded: 13
}

// The fifth of five loaders: the fourth, unchanged, and what makes it resume.
// The order depends on the epoch alone, and the random numbers of a batch on
// its place in the order alone. So the place, two numbers, is all that must be
// saved: the cursor. It moves before the body runs, because who saves it in the
// body has trained on the batch. What is in flight is not in it, and is loaded
// again. The training dies after each batch in turn, and goes on from one line
// of JSON, each time with another number of workers. The package has the same
// cursor, for any order, any number of ranks, and out of order.
func Example_resumes() {
	type result struct{ k, batch int }
	loader := func(n, workers, window int, load func(k int) int) iter.Seq2[int, int] {
		return func(yield func(k, batch int) bool) {
			tasks, results := make(chan int, window), make(chan result, window)
			var running sync.WaitGroup
			defer running.Wait() // then wait for them
			defer close(tasks)   // first the workers hear that there is no more work
			for range workers {
				running.Go(func() {
					for k := range tasks {
						results <- result{k, load(k)}
					}
				})
			}
			send := 0
			refill := func() {
				if send < n {
					tasks <- send
					send++
				}
			}
			for range window {
				refill()
			}
			cache := make([]*result, window) // order: results that came before their turn
			for recv := range n {            // here recv <= send <= recv+window
				for cache[recv%window] == nil { // order
					r := <-results
					cache[r.k%window] = &r // order
				}
				r := cache[recv%window]  // order
				cache[recv%window] = nil // order
				// Before the loop body runs, so that the workers are busy
				// meanwhile.
				refill()
				if !yield(r.k, r.batch) {
					return
				}
			}
		}
	}

	type cursor struct{ Epoch, Batch int }
	const n, epochs, seed = 8, 3, 42
	order := func(epoch int) []int { return rand.New(rand.NewPCG(seed, uint64(epoch))).Perm(n) }
	run := func(at *cursor, workers int) iter.Seq[int] {
		return func(yield func(batch int) bool) {
			from, samples := *at, order(at.Epoch)
			load := func(k int) int {
				pos := from.Batch + k
				rng := rand.New(rand.NewPCG(seed, uint64(from.Epoch*n+pos)))
				return 100*samples[pos] + rng.IntN(100) // a sample, and an augmentation
			}
			for k, batch := range loader(n-from.Batch, workers, 2*workers, load) {
				*at = cursor{from.Epoch, from.Batch + k + 1}
				if !yield(batch) {
					return
				}
			}
			*at = cursor{from.Epoch + 1, 0}
		}
	}

	var trained []int
	train := func(saved []byte, workers, steps int) []byte { // dies after so many steps
		var at cursor
		if err := json.Unmarshal(saved, &at); err != nil {
			log.Fatal(err)
		}
		for at.Epoch < epochs {
			for batch := range run(&at, workers) {
				trained = append(trained, batch)
				saved, _ = json.Marshal(at)
				if steps--; steps == 0 {
					return saved
				}
			}
		}
		saved, _ = json.Marshal(at)
		return saved
	}
	fmt.Println(string(train([]byte("{}"), 3, 13)))
	trained = nil
	train([]byte("{}"), 3, -1)
	whole := trained
	same := true
	for steps := 1; steps <= len(whole); steps++ {
		trained = nil
		saved := []byte("{}")
		for life := 0; len(trained) < len(whole); life++ {
			saved = train(saved, 1+life%4, steps)
		}
		same = same && slices.Equal(trained, whole)
	}
	fmt.Println("killed after any number of batches, the same", len(whole), "batches:", same)
	// Output:
	// {"Epoch":1,"Batch":5}
	// killed after any number of batches, the same 24 batches: true
}

// The second of the five loaders again, with what a training needs; it leads to
// engine.run and engine.startWorker. All tasks are queued at once. load may
// fail, and be stopped by its context. The loop asks ctx first: a load that is
// stopped fails in its own words, but no batch is bad. load may also end its
// goroutine by runtime.Goexit, as t.FailNow does. Only deferred functions run
// then. Without the deferred function of work the loop would wait for ever,
// because the worker is gone, and with it the task that it had.
func Example_errorsAndBreaks() {
	type result struct {
		batch int
		err   error
	}
	loader := func(
		ctx context.Context, n int, load func(ctx context.Context, k int) (int, error),
	) iter.Seq2[int, error] {
		return func(yield func(batch int, err error) bool) {
			tasks, results := make(chan int, n), make(chan result, n)
			for k := range n {
				tasks <- k
			}
			close(tasks)
			var running sync.WaitGroup
			defer running.Wait() // then wait for it
			ctx, cancel := context.WithCancel(ctx)
			defer cancel() // first the worker hears that no more batches are needed
			var work func()
			work = func() {
				working := false
				defer func() {
					if working { // load has not returned
						results <- result{0, errGoexit}
						running.Go(work) // another goroutine takes the place of this one
					}
				}()
				for k := range tasks {
					var r result
					if ctx.Err() == nil {
						working = true
						r.batch, r.err = load(ctx, k)
						working = false
					}
					results <- r
				}
			}
			running.Go(work)
			for range n {
				r := <-results
				if ctx.Err() != nil {
					yield(0, context.Cause(ctx))
					return
				}
				if !yield(r.batch, r.err) {
					return
				}
			}
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	load := func(ctx context.Context, k int) (int, error) {
		if k == 1 {
			runtime.Goexit()
		} else if k == 2 {
			<-ctx.Done()
			return 0, errors.New("the connection is closed")
		}
		return k * k, nil
	}
	for batch, err := range loader(ctx, 10, load) {
		fmt.Println(batch, err)
		if err != nil {
			stop() // stands for a signal
		}
	}
	// Output:
	// 0 <nil>
	// 0 runtime.Goexit was called
	// 0 context canceled
}

// # The tests of the first reading

// The tests of dataloader.go begin with those of a notebook that builds
// PyTorch's DataLoader step by step.

// ## The page that draws what a loader does

// A scenario, and what happens in it, are those of TestTimeline in
// bench_test.go. The page draws them anew for each change of its form.

var playOn = flag.String("play", "", "the address on which TestPlay serves its page")

// A slider is a number of a scenario that the page asks for.
type slider struct {
	name, label string
	value       *int
	least, most int
}

// sliders are those of s. One from 0 to 1 is a box to tick.
func (s *scenario) sliders() []slider {
	return []slider{
		{"workers", "Workers", &s.workers, 0, 8},
		{"prefetch", "Prefetch", &s.prefetch, 1, 5},
		{"unordered", "Unordered", &s.unordered, 0, 1},
		{"batches", "batches", &s.batches, 1, 40},
		{"load", "loading takes", &s.load, 0, 200},
		{"longer", "odd batches longer by", &s.longer, 0, 200},
		{"slow", "slow batch", &s.slow, -1, 39},
		{"takes", "the slow batch takes", &s.takes, 0, 1000},
		{"train", "training takes", &s.train, 0, 200},
		{"fails", "batch that fails", &s.fails, -1, 39},
		{"leaves", "break after batch", &s.leaves, -1, 39},
		{"deaf", "Get ignores its context", &s.deaf, 0, 1},
		{"at", "the line stands at", &s.at, 0, math.MaxInt32},
	}
}

// scenarioOf returns the scenario that a form has sent. What is missing or no
// number is that of newScenario; what is out of range is clamped.
func scenarioOf(form url.Values) *scenario {
	s := newScenario()
	for _, sl := range s.sliders() {
		n, err := strconv.Atoi(form.Get(sl.name))
		if err == nil {
			*sl.value = min(max(n, sl.least), sl.most)
		}
	}
	if unit := form.Get("unit"); slices.Contains(timeUnits(), unit) {
		s.unit = unit
	}
	return s
}

// timeUnits are the units of a scenario.
func timeUnits() []string { return []string{"ms", "s", "m", "h"} }

// A player is a page that plays scenarios, one at a time.
type player struct {
	mu sync.Mutex
	t  *testing.T // for the bubbles, which belong to a test; nothing fails it
}

func (p *player) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := scenarioOf(r.URL.Query())
	p.mu.Lock()
	run := s.run(p.t)
	p.mu.Unlock()
	s.at = min(s.at, int(run.end/s.units(1)))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, pageHead, paletteCSS(), s.form(run), run.figure())
}

// form returns the sliders as a form.
func (s *scenario) form(run *played) string {
	text := new(strings.Builder)
	for _, sl := range s.sliders() {
		if sl.most == 1 {
			checked := map[int]string{1: " checked"}[*sl.value]
			fmt.Fprintf(text, `<label><input type="checkbox" name="%s" value="1"%s> %s</label>`+"\n",
				sl.name, checked, sl.label)
			continue
		}
		step := 1
		if sl.name == "at" {
			text.WriteString(s.unitMenu())
			sl.most = int(run.end / s.units(1))
			step = 1 + sl.most/500
		}
		shown := strconv.Itoa(*sl.value)
		if *sl.value < 0 {
			shown = "none"
		}
		fmt.Fprintf(text, `<label>%s: <output>%s</output>`+
			`<input type="range" name="%s" min="%d" max="%d" step="%d" value="%d"></label>`+"\n",
			sl.label, shown, sl.name, sl.least, sl.most, step, *sl.value)
	}
	return text.String()
}

// unitMenu returns the choice of a unit, and the button.
func (s *scenario) unitMenu() string {
	text := `<label>times are in <select name="unit">`
	for _, unit := range timeUnits() {
		selected := map[bool]string{true: " selected"}[unit == s.unit]
		text += fmt.Sprintf("<option%s>%s</option>", selected, unit)
	}
	return text + "</select></label>\n<button>play</button>\n"
}

// figure returns the picture of a run, what Stats says, and a table.
func (p *played) figure() string {
	text := new(strings.Builder)
	if p.err != nil {
		fmt.Fprintf(text, "<pre>%s</pre>", html.EscapeString(p.err.Error()))
		return text.String()
	}
	how := fmt.Sprintf("window %d, %s", p.window(), []string{"in order", "out of order"}[p.unordered])
	if p.workers == 0 {
		how = "load and train in turn"
	}
	fmt.Fprintf(text, "<figcaption>Workers: %d, %s: %s</figcaption>\n<div class=\"lanes\">\n",
		p.workers, how, p.took())
	place := func(from, to time.Duration) string {
		percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(max(p.end, 1)) }
		return fmt.Sprintf(`style="left: %.2f%%; width: %.2f%%"`, percent(from), percent(to-from))
	}
	for _, l := range p.lanes(0) {
		fmt.Fprintf(text, `<div class="lane"><span>%s</span>`, l.name)
		for _, b := range l.bars {
			label := ""
			if b.batch >= 0 {
				label = strconv.Itoa(b.batch)
			}
			fmt.Fprintf(text, `<b class="%s" %s>%s</b>`, b.class, place(b.from, b.to), label)
		}
		text.WriteString("</div>\n")
	}
	fmt.Fprintf(text, `<div class="lane"><span>%s</span>`, p.unit)
	for _, tick := range p.ticks() {
		fmt.Fprintf(text, `<i %s>%d</i>`, place(tick, tick), tick/p.units(1))
	}
	text.WriteString("</div>\n")
	for _, m := range p.moments() {
		class := map[bool]string{true: " at"}[m.marked]
		fmt.Fprintf(text, `<div class="moment%s" %s></div><p class="note%s">%s</p>`+"\n",
			class, place(m.from, m.to), class, m.note)
	}
	fmt.Fprintf(text, "</div>\n<p class=\"stats\">%s</p>\n", html.EscapeString(p.stats.String()))
	text.WriteString("<details><summary>The batches as a table</summary><table>\n" +
		"<tr><th>batch<th>sent<th>begun<th>loaded<th>received<th>done with\n")
	for _, j := range p.journeys {
		fmt.Fprintf(text, "<tr><td>%d", j.batch)
		for _, d := range []time.Duration{j.sent, j.start, j.done, j.received, j.returned} {
			if d == never {
				text.WriteString("<td>–")
			} else {
				fmt.Fprintf(text, "<td>%d", d/p.units(1))
			}
		}
		text.WriteString("\n")
	}
	text.WriteString("</table></details>")
	return text.String()
}

// pageHead is the page: the colours, the form and the figure stand in it.
// Without script the form is sent by its button; with script each change is.
const pageHead = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>What does a loader do?</title>
<style>
%s
body { margin: 1em auto; max-width: 60em; padding: 0 .6em; }
body { font: 15px/1.4 ui-sans-serif, system-ui, sans-serif; }
h1 { font-size: 1.2em; }
form { display: grid; align-items: end; gap: .4em 1em; grid-template-columns: repeat(auto-fill, minmax(10em, 1fr)); }
input[type=range] { display: block; width: 100%%; margin: 0; }
label:has([name=at]) { grid-column: 1 / -1; }
figure { margin: 1em 0; }
figcaption { font-weight: 600; }
.lanes { position: relative; margin: .4em .8em 0 5em; padding-top: var(--room); --room: 3em; }
@media (max-width: 40em) { .lanes { --room: 6em; } }
.lane { position: relative; height: 1.3em; }
.lane span { position: absolute; left: -5em; }
.lane b { position: absolute; top: 1px; height: 1.4em; min-width: 3px; box-sizing: border-box; }
.lane b { overflow: hidden; border-right: 1px solid var(--page); border-radius: 3px; }
.lane b { text-align: center; line-height: 1.4; }
.lane i { position: absolute; transform: translate(-50%%); width: auto !important; }
.lane i { font-style: normal; font-size: 12px; }
b { font-size: 12px; font-weight: normal; padding: 0 1px; }
.dashed { border: 1px dashed var(--dashed) !important; }
.bad { z-index: 1; }
.dropped { opacity: .4; }
.moment { position: absolute; top: var(--room); bottom: 1.3em; }
.note { position: absolute; top: 0; left: -5em; right: -.8em; margin: 0; visibility: hidden; }
.note.at, .moment:hover + .note { visibility: visible; }
.lanes:has(.moment:hover) .note.at:not(:hover + .note) { visibility: hidden; }
.moment.at::after, .moment:hover::after { content: ""; position: absolute; left: 50%%; height: 100%%; }
.moment::after { border-left: 2px solid var(--mark); }
.lanes:has(.moment:hover) .moment.at:not(:hover)::after { content: none; }
table { border-spacing: 1em 0; text-align: right; font-variant-numeric: tabular-nums; }
</style>
<h1>What does a loader do?</h1>
<form>
%s
</form>
<figure>
%s
</figure>
<p><b class="load">loading</b> <b class="wait">ready, waiting</b> <b class="train">training</b>
<b class="slow">the slow batch</b> <b class="bad">failed</b> <b class="dashed">window full</b>
<b class="load dropped">dropped</b></p>
<script>
const form = document.forms[0]
let asked = 0
form.oninput = async () => {
	const mine = ++asked, query = '?' + new URLSearchParams(new FormData(form))
	const text = await (await fetch(query)).text()
	if (mine != asked) return // a later change has been answered, or will be
	const page = new DOMParser().parseFromString(text, 'text/html')
	const details = page.querySelector('details')
	if (details) details.open = document.querySelector('details')?.open
	document.querySelector('figure').replaceWith(page.querySelector('figure'))
	const outputs = page.querySelectorAll('output'), at = page.querySelector('[name=at]')
	document.querySelectorAll('output').forEach((o, i) => { o.value = outputs[i].value })
	form.at.max = at.max
	form.at.step = at.step
	history.replaceState(null, '', query)
}
</script>
</html>
`

// TestPlay asks the page for some scenarios, plays each of them again, and
// checks that the page says what a Get and the body see. With -play it serves
// the page instead:
//
//	go test -run TestPlay -play localhost:8080 -timeout 0
func TestPlay(t *testing.T) {
	page := &player{t: t}
	if *playOn != "" {
		listener, err := net.Listen("tcp", *playOn)
		failIf(t, err != nil, "%v", err)
		fmt.Printf("http://%v shows what a loader does; Ctrl-C ends it\n", listener.Addr())
		t.Fatal(http.Serve(listener, page))
	}
	queries := []string{
		"", "workers=0", "workers=1&train=50", "unordered=1", "prefetch=5", "batches=40&workers=8",
		"train=0", "fails=2", "fails=0&slow=0&workers=0", "leaves=3", "leaves=3&deaf=1&unit=h",
		"leaves=0&unordered=1&deaf=1", "unit=m&load=200&takes=1000&at=300", "batches=1",
		"load=1&longer=0&train=0&slow=-1",
	}
	lesson := must(os.ReadFile("testdata/lesson.md"))
	for _, url := range regexp.MustCompile(`localhost:8080/\?([\w=&-]+)`).FindAllSubmatch(lesson, -1) {
		queries = append(queries, string(url[1]))
	}
	for _, query := range queries {
		runRow(t, cmp.Or(query, "the first page"), func(t *testing.T) {
			form := must(url.ParseQuery(query))
			text := page.ask(query)
			s := scenarioOf(form)
			for name := range form {
				kept := fmt.Sprintf(`name="%s" [^>]*value="%[2]s"|selected>%[2]s`, name, form.Get(name))
				shown := regexp.MustCompile(kept).MatchString(text)
				failIf(t, !shown, "%s is not on the page", name)
			}
			checkPage(t, s, text)
		})
	}
	clamped := page.ask("workers=8&batches=1&prefetch=1&slow=39&at=50")
	bad := page.ask("workers=99&batches=-5&prefetch=0&slow=4000&unit=year&at=999999999&train=a")
	equal(t, "what is out of range", bad, clamped)
}

// ask returns the page for a query.
func (p *player) ask(query string) string {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?"+query, nil))
	return w.Body.String()
}

// A sighting is what a Get and the body see of a batch.
type sighting struct{ start, done, received, returned time.Duration }

// checkPage plays a scenario without Trace, and compares what is seen with the
// bars, the notes and the table of a page.
func checkPage(t *testing.T, s *scenario, page string) {
	t.Helper()
	seen := make([]sighting, s.batches)
	for k := range seen {
		seen[k] = sighting{never, never, never, never}
	}
	var end time.Duration
	inBubble(t, func(t *testing.T) {
		begin := time.Now()
		data := Func(s.batches, func(ctx context.Context, k int) (int, error) {
			seen[k].start = time.Since(begin)
			defer func() { seen[k].done = time.Since(begin) }()
			return s.Get(ctx, k)
		})
		opts := Options{Workers: s.workers, Unordered: s.unordered == 1}
		opts.Prefetch = min(s.workers, 1) * s.prefetch
		for batch, err := range newLoader(t, data, opts).Epoch(t.Context(), 0) {
			k := s.fails
			if len(batch) == 1 {
				k = batch[0]
			}
			failIf(t, k < 0, "a batch of %v, and the error %v", batch, err)
			seen[k].received = time.Since(begin)
			if err == nil {
				time.Sleep(s.units(s.train))
			}
			if seen[k].returned = time.Since(begin); k == s.leaves {
				break
			}
		}
		end = time.Since(begin)
	})
	near := func(what string, from, to time.Duration, left, width string) {
		percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(end) }
		x, w := must(strconv.ParseFloat(left, 64)), must(strconv.ParseFloat(width, 64))
		far := math.Abs(x-percent(from))+math.Abs(x+w-percent(min(to, end))) > 0.03
		failIf(t, far, "%s: left %v %%, width %v %%, must be from %v to %v", what, x, w, from, to)
	}
	loads, trains := 0, 0
	laneOf := regexp.MustCompile(`<div class="lane"><span>(\w+).*`)
	barOf := regexp.MustCompile(`<b class="[\w -]+" style="left: ([\d.]+)%; width: ([\d.]+)%">(\d+)</b>`)
	for _, lane := range laneOf.FindAllStringSubmatch(page, -1) {
		for _, bar := range barOf.FindAllStringSubmatch(lane[0], -1) {
			k := must(strconv.Atoi(bar[3]))
			switch lane[1] {
			case "load", "worker":
				loads++
				near(fmt.Sprint("loading of ", k), seen[k].start, seen[k].done, bar[1], bar[2])
			case "train":
				trains++
				near(fmt.Sprint("training on ", k), seen[k].received, seen[k].returned, bar[1], bar[2])
			}
		}
	}
	cells := func(all ...time.Duration) (text string) {
		for _, d := range all {
			text += "<td>"
			if d == never {
				text += "–"
			} else {
				text += strconv.Itoa(int(d / s.units(1)))
			}
		}
		return text
	}
	begun, trained := 0, 0
	for k, b := range seen {
		row := regexp.MustCompile(fmt.Sprintf("(?m)^<tr><td>%d<td>[^<]+(.*)$", k))
		got, want := row.FindStringSubmatch(page)[1], cells(b.start, b.done, b.received, b.returned)
		equal(t, fmt.Sprint("the row of batch ", k), got, want)
		if b.done-b.start > end/400 {
			begun++
		}
		if b.returned-b.received > end/400 || b.returned < never && k == s.fails {
			trained++
		}
	}
	equal(t, "bars of loading", loads, begun)
	equal(t, "bars of training", trains, trained)
	notes := regexp.MustCompile(`class="note[^>]*>\d+ to (\d+) \w+: recv = (\d+), send = (\d+)([^<]*)`)
	number, inBody := regexp.MustCompile(`\d+`), regexp.MustCompile(`\d+ in the body`)
	for _, note := range notes.FindAllStringSubmatch(page, -1) {
		var to, recv, send int
		must(fmt.Sscan(strings.Join(note[1:4], " "), &to, &recv, &send))
		received := 0
		for _, b := range seen {
			if b.received/s.units(1) < time.Duration(to) {
				received++
			}
		}
		inFlight := number.FindAllString(inBody.ReplaceAllString(note[4], ""), -1)
		equal(t, "batches in flight in "+note[0], len(inFlight), send-recv)
		equal(t, "recv in "+note[0], recv, received)
		failIf(t, recv > send || send > recv+max(1, s.window()), "%s", note[0])
	}
}

// ## dataset.go: data sets, the random numbers of a sample, files

// TestRows checks that a row is a view of the tensor's memory, which an append
// to it leaves alone.
func TestRows(t *testing.T) {
	table := Tensor[int]{[]int{1, 2, 3, 4, 5, 6}, []int{3, 2}}
	rows := must(Rows(table))
	equal(t, "rows", fmt.Sprint(values(t, rows)), "[{[1 2] [2]} {[3 4] [2]} {[5 6] [2]}]")
	row := must(rows.Get(t.Context(), 1))
	equal(t, "a row shares the tensor's memory", &row.Data[0] == &table.Data[2], true)
	_ = append(row.Data, 9)
	equal(t, "after an append to row 1", table.Data, []int{1, 2, 3, 4, 5, 6})
	equal(t, "rows of a vector", fmt.Sprint(values(t, must(Rows(Tensor[int]{[]int{1, 2}, []int{2}})))), "[{[1] []} {[2] []}]")
	equal(t, "empty rows", fmt.Sprint(values(t, must(Rows(Tensor[int]{nil, []int{2, 0}})))), "[{[] [0]} {[] [0]}]")
}

// TestDatasets checks what each adapter makes of small data sets, and that all
// of them refuse an index outside.
func TestDatasets(t *testing.T) {
	letters := Slice[string]{"a", "b", "c", "d", "e"}
	indices := []int{4, 0, 0}
	subset := must(Subset(letters, indices))
	indices[0] = 1 // Subset has a copy
	equal(t, "Subset", fmt.Sprint(values(t, subset)), "[e a a]")
	equal(t, "Pairs", fmt.Sprint(values(t, must(Pairs(letters, numbers(5))))), "[{a 0} {b 1} {c 2} {d 3} {e 4}]")
	parts := Concat[string](Slice[string]{}, letters[:2], Slice[string]{}, letters[2:], Slice[string]{})
	equal(t, "Concat", values(t, parts), []string(letters))
	saysAll(t, panicOf(func() { Concat(numbers(math.MaxInt), numbers(1)) }), "Concat: the length of part 1 is negative, or the sum")
	equal(t, "Concat of nothing", fmt.Sprint(values(t, Concat[int]())), "[]")
	square := func(_ context.Context, i int) (string, error) { return strconv.Itoa(i * i), nil }
	equal(t, "Transform", fmt.Sprint(values(t, Transform(numbers(3), square))), "[0 1 4]")
	failed := Transform(failing(2, 0), func(_ context.Context, i int) (int, error) { return i, errors.New("not reached") })
	equal(t, "Transform of a failed sample", errorOf(failed.Get(t.Context(), 0)), errBad)
	equal(t, "Pairs of a failed sample", errorOf(must(Pairs(failing(1, 0), numbers(1))).Get(t.Context(), 0)), errBad)
	for _, i := range []int{-1, 3} {
		part := must(Subset(numbers(9), []int{1, 2, 3}))
		for _, data := range []Dataset[int]{make(Slice[int], 3), numbers(3), Cache(numbers(3)), part, Concat(numbers(1), numbers(2))} {
			saysAll(t, errorOf(data.Get(t.Context(), i)), fmt.Sprint("index ", i), "3 samples")
		}
	}
}

// TestCache checks that each sample is fetched once. A fetch that failed or
// died is not kept, and leaves nobody waiting.
func TestCache(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var calls [7]atomic.Int64
		fails := map[int]func() error{
			3: func() error { return errBad },
			4: func() error { panic("ouch") },
			5: func() error { runtime.Goexit(); return nil },
		}
		data := Cache(Func(7, func(_ context.Context, i int) (int, error) {
			time.Sleep(time.Second)
			if fail := fails[i]; calls[i].Add(1) == 1 && fail != nil {
				return 0, fail()
			}
			return i * i, nil
		}))
		var all sync.WaitGroup
		for k := range 20 * 7 {
			all.Go(func() {
				defer func() { recover() }()
				if v, err := data.Get(t.Context(), k%7); err == nil && v != k%7*(k%7) || err != nil && err != errBad {
					t.Error(k%7, v, err)
				}
			})
		}
		all.Wait()
		for i := range calls {
			equal(t, fmt.Sprint("fetches of ", i), calls[i].Load(), []int64{1, 1, 1, 2, 2, 2, 1}[i])
		}
		t.Logf("20 goroutines have asked for sample 0, which was fetched %d time", calls[0].Load())
	})
}

// TestCacheWaiters checks that who waits for another's fetch gives up with its
// own context, and fetches if the other gives up.
func TestCacheWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		data := Cache(Dataset[int](&probe{n: 8, takes: always(time.Hour)}))
		get := func(limit time.Duration) error {
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, io.ErrNoProgress)
			defer cancel()
			return errorOf(data.Get(ctx, 7))
		}
		var other sync.WaitGroup
		var others error // of its Get
		start := time.Now()
		other.Go(func() { others = get(time.Minute) })
		synctest.Wait()
		equal(t, "impatient", get(time.Second), io.ErrNoProgress)
		equal(t, "its time", time.Since(start), time.Second)
		equal(t, "patient", must(data.Get(t.Context(), 7)), 7)
		equal(t, "its time", time.Since(start), time.Hour+time.Minute)
		other.Wait()
		equal(t, "the other", others, context.DeadlineExceeded)
	})
}

// TestRand checks that the random numbers of a sample are its own, for every
// epoch and seed, except inside a Cache. They are the same for every number of
// workers, in order or not, after a resume, for any number of ranks, and by
// Batch. The batch of a NewBatchFunc has one generator.
func TestRand(t *testing.T) {
	draw := func(ctx context.Context, dst, indices []int) ([]int, error) {
		for dst = dst[:0]; len(dst) < len(indices); {
			dst = append(dst, Rand(ctx).Int())
		}
		return dst, nil
	}
	shuffled, want := Options{Shuffle: true, Seed: 5, BatchSize: 4}, map[string][]int{}
	for _, l := range []loading{
		{"shuffled", augmented(), nil, shuffled, ""},
		{"batch sampler", augmented(), nil, Options{BatchSampler: Batches(Sequential(24), 4, false)}, ""},
		{"NewBatchFunc", atOnce{n: 24, load: draw}, nil, shuffled, ""},
	} {
		all := batches(t, l.loader(0, 0), 2)
		l.want, want[l.name] = fmt.Sprint(all), slices.Concat(all...)
		l.check(t, 0)
		l.opts.Unordered = true
		equal(t, l.name+": unordered", sorted(samples(t, l.loader(3, 0), 2)), sorted(want[l.name]))
		var different []int
		for k := range 6 {
			l.opts.Seed = uint64(k % 2)
			different = append(different, samples(t, l.loader(0, 0), k/2)...)
		}
		equal(t, l.name+": different numbers", distinct(different), 6*24)
	}
	together := make([]int, 24)
	for rank := range 2 {
		opts := Options{Shuffle: true, Seed: 5, BatchSize: 2, Rank: Rank{rank, 2}}
		for k, number := range samples(t, newLoader(t, augmented(), opts), 2) {
			together[2*k+rank] = number
		}
	}
	equal(t, "two ranks", together, want["shuffled"])
	var drawn []int // by first and second generators, whose seeds are 5 and 6, and 5 in both
	for k := range 4 {
		data := Func(24, func(ctx context.Context, i int) (int, error) {
			second := Rand(WithSeed(ctx, 5)).Int()
			equal(t, "two calls with one seed", second, Rand(WithSeed(ctx, 5)).Int())
			return []int{Rand(ctx).Int(), second}[k%2], nil
		})
		drawn = append(drawn, samples(t, newLoader(t, data, Options{Seed: 5 + uint64(k/2)}), 0)...)
	}
	equal(t, "generators that are independent", distinct(drawn), 4*24)
	outside := WithSeed(t.Context(), 5)
	equal(t, "outside a loader", Rand(outside).Int(), rand.New(rand.NewPCG(hash(5, 0), hash(0, 0))).Int())
	equal(t, "one in another", Rand(WithSeed(outside, 5)).Int() == Rand(WithSeed(t.Context(), 5)).Int(), false)
	cached, late := newLoader(t, Cache(augmented()), shuffled), newLoader(t, Cache(augmented()), shuffled)
	first, third := samples(t, cached, 0), samples(t, cached, 3)
	equal(t, "first fetched in epoch 3", samples(t, late, 3), third)
	equal(t, "fetched before", samples(t, cached, 0), first)
}

// TestWorker checks that all workers load, that each knows its number, and that
// nobody else has one.
func TestWorker(t *testing.T) {
	eachWorkers(t, []int{0, 1, 2, 3}, func(t *testing.T, workers int) {
		data := Transform(&probe{n: 12, takes: always(time.Second)}, func(ctx context.Context, _ int) (int, error) {
			return Worker(WithSeed(ctx, 1)), nil
		})
		loader, want := newLoader(t, data, Options{Workers: workers}), [][]int{{-1}, {0}, {0, 1}, {0, 1, 2}}[workers]
		equal(t, "workers", slices.Compact(sorted(samples(t, loader, 0))), want)
		equal(t, "Batch", must(loader.Batch(t.Context(), 0, 0)), []int{-1})
	})
	equal(t, "outside", Worker(t.Context()), -1)
}

// TestBadDatasets checks that arguments that can never be right are refused,
// also by what makes batches.
func TestBadDatasets(t *testing.T) {
	const wraps = (4*math.MaxInt + 7) / 5 // 5 × wraps is 3 in the integers of a machine
	some, none := numbers(3), Dataset[int](nil)
	split := func(lengths ...int) error { return errorOf(Split(numbers(10), 1, lengths...)) }
	rows := func(shape ...int) error { return errorOf(Rows(Tensor[int]{make([]int, 3), shape})) }
	panics(t, map[string]func(){
		"Func … -1":                      func() { Func(-1, some.Get) },
		"Func … nil":                     func() { Func[int](1, nil) },
		"Concat … part 1":                func() { Concat(some, nil) },
		"Transform: the function is nil": func() { Transform[int, int](some, nil) },
		"Transform: the data set is nil": func() { Transform(none, quick) },
		"Cache … nil":                    func() { Cache(none) },
		"Rand … from no loader":          func() { Cache(augmented()).Get(t.Context(), 0) },
		"Rand … from no loader … pass on the context that Get was given … WithSeed": func() { Rand(t.Context()) },
		"CollatePair: a Collate is nil": func() { CollatePair[int, int, []int, []int](List[int], nil) },
		"CollatePair … Collate is nil":  func() { CollatePair[int, int, []int, []int](nil, List[int]) },
	})
	refused(t, []refusal{
		{errorOf(Pairs(some, numbers(4))), "Pairs … 3 … 4"},
		{errorOf(Pairs(none, some)), "Pairs … nil"},
		{errorOf(Pairs(some, none)), "Pairs … nil"},
		{errorOf(Subset(some, []int{0, 3})), "Subset … indices[1] … index 3 … 3 samples"},
		{errorOf(Subset(some, []int{-1})), "Subset … indices[0] … index -1 … 3 samples"},
		{errorOf(Subset(none, nil)), "Subset … nil"},
		{split(-1, 11), "Split … lengths[0] is -1 … 0 to 10"},
		{split(3, 8), "Split … lengths[1] is 8 … 0 to 7"},
		{split(3, 6), "Split … sum to 9 … 10"},
		{errorOf(Split(none, 1)), "Split … nil"},
		{errorOf(Split(numbers(maxTorch+1), 1)), "Split … 214748364 samples, may have at most 214748363"},
		{rows(), "Rows … no dimension"},
		{rows(2, 2), "Rows … 3 elements … [2 2]"},
		{rows(-3, -1), "Rows … 3 elements … [-3 -1]"},
		{rows(5, wraps), "Rows … 3 elements … [5 "},
	})
}

// TestCheckDataset checks that checkDataset names the sample that differs, and
// lets pass what only looks as if it did.
func TestCheckDataset(t *testing.T) {
	type record struct {
		label  int // not exported
		tags   map[string]*int
		weight float64
	}
	var fetched atomic.Int64
	at := func(bad, i int) int64 { return map[bool]int64{true: fetched.Add(1)}[i == bad] } // differs for sample bad
	buffer := make([]int, 1)
	for want, get := range map[string]func(i int) (any, error){
		"nothing differs": func(i int) (any, error) {
			return record{i, map[string]*int{"a": &i, "b": ptr(3)}, math.NaN()}, map[int]error{4: errBad}[i]
		},
		"sample 0 has changed … reuses memory": func(i int) (any, error) { buffer[0] = i; return &buffer, nil },
		"sample 5 differs":                     func(i int) (any, error) { return record{label: int(at(5, i))}, nil },
		"sample 6 differs":                     func(i int) (any, error) { return map[int]*int64{1: ptr(at(6, i))}, nil },
		"sample 7 differs":                     func(i int) (any, error) { return []any{ptr(at(7, i))}, nil },
		"sample 8 differs":                     func(i int) (any, error) { return nil, fmt.Errorf("fetch %d", at(8, i)) },
	} {
		runRow(t, want, func(t *testing.T) {
			err := checkDataset(Func(9, func(_ context.Context, i int) (any, error) { return get(i) }))
			saysAll(t, cmp.Or(err, errors.New("nothing differs")), want)
		})
	}
	equal(t, "random numbers", checkDataset(augmented()), nil)
}

// ## sampler.go: orders, draws, batches of similar length, ranks

// TestRandomIsBijection checks that every index comes once, for all small
// lengths and around powers of two and four, where others have lost samples.
// For huge lengths it undoes the network.
func TestRandomIsBijection(t *testing.T) {
	lengths := append(upTo(301), maxTable-1, maxTable+2)
	for k := 9; k <= 18; k++ {
		lengths = append(lengths, 1<<k-1, 1<<k, 1<<k+1)
	}
	if !testing.Short() {
		lengths = append(lengths, 1<<20+1, 1281167)
	}
	for _, n := range lengths {
		for key := range 3 {
			seen := make([]bool, n)
			for pos, i := range positions(Random(n, uint64(key)), 2-key) {
				if i < 0 || i >= n || seen[i] {
					t.Fatalf("n %d, seed %d: position %d has %d, which is outside or comes twice", n, key, pos, i)
				}
				seen[i] = true
			}
		}
	}
	huge := []uint64{maxTable + 1, 1e6, 1<<30 - 1, 1 << 30, math.MaxInt32}
	if strconv.IntSize == 64 {
		huge = append(huge, 1<<32-1, 1<<32, 1<<32+1, 1e12, 1<<40+1, 1<<62-1, 1<<62)
	}
	for _, n := range huge {
		f := newFeistel(n, n)
		domain := f.a << f.k
		failIf(t, domain < n || domain-n > 1<<(f.k+1), "n %d: the domain is %d", n, domain)
		for k := range uint64(1000) {
			pos := counter(n, k) % n
			i := uint64(f.at(int(pos)))
			back := undo(f, i)
			failIf(t, i >= n || back != pos, "n %d: position %d has %d, which is position %d's", n, pos, i, back)
		}
	}
}

// TestRandomIsUniform checks by chi-square that over seeds and epochs Random is
// a good shuffle: all pairs of values, in bins, are as likely as they should be
// at some pairs of positions. Weak networks fail it.
func TestRandomIsUniform(t *testing.T) {
	if testing.Short() {
		t.Skip("it computes 490,000 orders")
	}
	for _, n := range []int{3, 4, 5, 10, 33, 100, 300, 1000, maxTable, maxTable + 1, 1 << 16, 65537, 1281167} {
		runRow(t, fmt.Sprint("n ", n), func(t *testing.T) {
			bins, keys := min(n, 16), 20000
			if n == maxTable {
				keys = 5000 // each makes a table
			}
			var weights []float64 // of each pair of bins
			for cell := range bins * bins {
				a, b := cell/bins, cell%bins
				inA, inB := (a+1)*n/bins-a*n/bins, (b+1)*n/bins-b*n/bins // values
				if a == b {
					inB-- // a value does not come twice
				}
				weights = append(weights, float64(inA*inB))
			}
			bin := func(value int) int { return ((value+1)*bins - 1) / n }
			for over, order := range map[string]func(key int) func(pos int) int{
				"seeds":  func(key int) func(pos int) int { return Random(n, uint64(key)).Order(0) },
				"epochs": Random(n, 0).Order,
			} {
				for _, pair := range [][2]int{{0, 1}, {1, 2}, {0, n / 2}, {n - 2, n - 1}} {
					counts := make([]int, len(weights))
					for key := range keys {
						at := order(key)
						counts[bin(at(pair[0]))*bins+bin(at(pair[1]))]++
					}
					z := zScore(t, counts, weights...)
					failIf(t, math.Abs(z) > 4, "over %s positions %v miss by %.1f deviations", over, pair, z)
				}
			}
		})
	}
	agree, n := 0, 50000 // one position in each pair of orders
	for seed := range uint64(100) {
		a, b := Random(n, seed).Order(5), Random(n, seed+1).Order(4)
		for pos := range n {
			if a(pos) == b(pos) {
				agree++
			}
		}
	}
	failIf(t, agree < 60 || agree > 140,
		"orders of (seed, epoch) and (seed+1, epoch-1) agree at %d positions, want 100, ± 40", agree)
}

// TestGoldenOrders pins orders and random numbers, which must not change,
// because a cursor has only the seed. The values of the two networks are the
// example in the comment of feistel: the larger one, on its whole domain, does
// not walk.
func TestGoldenOrders(t *testing.T) {
	weights := []float64{.1, .9, .4, .7, 3, .6}
	buckets := must(Buckets([]int{3, 9, 4, 4, 8, 1, 3, 9}, 18, 1)).Batches(0)
	drawn := Func(10, func(ctx context.Context, i int) (string, error) {
		return fmt.Sprint(Rand(ctx).IntN(1000), Rand(ctx).IntN(1000)), nil
	})
	f, g := newFeistel(12, 0), newFeistel(10, 0)
	for want, got := range map[string]any{
		"[5 0 2 6 3 8 9 4 1 7]":          positions(Random(10, 0), 0),
		"[2 6 7 0 9 1 4 5 8 3]":          positions(Random(10, 0), 1),
		"[2 0 9 7 1 5 4 6 8 3]":          positions(Random(10, 1), 0),
		"[2542 955 2075]":                positions(Random(4096, 1), 0)[:3], // of maxTable positions
		"[2872 415 2478]":                positions(Random(4097, 1), 0)[:3],
		"[70077 24005 18452 1604 34750]": positions(Random(131073, 0), 0)[:5],
		"[11 5 1 7]":                     []int{f.at(7), f.at(11), f.at(5), f.at(1)},
		"[5 1 7]":                        []int{g.at(7), g.at(5), g.at(1)},
		"[7 3 6 9 6 1 5 7 5 6]":          positions(RandomWithReplacement(10, 10, 0), 0),
		"[1 1 4 5 4 3]":                  positions(must(Weighted(weights, 6, true, 0)), 0),
		"[1 4 5 0 2 3]":                  positions(must(Weighted(weights, 6, false, 0)), 0),
		"[[3 2] [0 6] [5] [7 4]]":        [][]int{buckets(0), buckets(1), buckets(2), buckets(3)},
		"[553 203]":                      batches(t, newLoader(t, drawn, Options{Seed: 9}), 2)[7],
		"Weighted(6 of 6, weights #dc404c201882b333, replace false, seed 0), version 2": must(Weighted(weights, 6, false, 0)),
	} {
		runRow(t, want, func(t *testing.T) { equal(t, "an order that has changed", fmt.Sprint(got), want) })
	}
}

// TestTorch compares randperm, DistributedSampler and random_split with orders
// that torch has produced.
func TestTorch(t *testing.T) {
	type order[Out any] struct {
		N, World, Epoch int
		Seed            uint64
		DropLast        bool `json:"drop_last"`
		Shuffle         bool
		Ranks           [][]int
		Out             Out
	}
	var torch struct {
		Randperm    []order[[]int]
		Distributed []order[any]
		RandomSplit []order[[][]int] `json:"random_split"`
	}
	must(0, json.Unmarshal(must(os.ReadFile("testdata/torch_orders.json")), &torch))
	equal(t, "whether there are permutations", len(torch.Randperm) > 0, true)
	equal(t, "whether there are orders of ranks", len(torch.Distributed) > 0, true)
	equal(t, "whether there are splits", len(torch.RandomSplit) > 0, true)
	for _, c := range torch.Randperm {
		runRow(t, fmt.Sprintf("randperm %+v", c), func(t *testing.T) {
			equal(t, "order", positions(TorchRandom(c.N, c.Seed), 0), c.Out)
		})
	}
	for _, c := range torch.Distributed {
		runRow(t, fmt.Sprintf("%+v", c), func(t *testing.T) {
			opts := Options{BatchSize: 3}
			if c.DropLast {
				opts.Tail = DropTail
			}
			if c.Shuffle {
				opts.Sampler = TorchRandom(c.N, c.Seed)
			}
			for rank, want := range c.Ranks {
				opts.Rank, opts.Workers = Rank{rank, c.World}, rank%3
				if len(want) == 0 && noBatch(c.N, opts) {
					continue // refused
				}
				equal(t, fmt.Sprintf("%+v", opts), samples(t, newLoader(t, numbers(c.N), opts), c.Epoch), want)
			}
		})
	}
	for _, c := range torch.RandomSplit {
		var lengths []int
		for _, part := range c.Out {
			lengths = append(lengths, len(part))
		}
		runRow(t, fmt.Sprint("split ", lengths), func(t *testing.T) {
			for p, part := range must(Split(numbers(c.N), c.Seed, lengths...)) {
				equal(t, fmt.Sprint("part ", p), values(t, part), c.Out[p])
			}
		})
	}
}

// TestOrderFunc checks that a caller that shuffles one slice in place does not
// disturb an epoch under way, and that an order that could not be computed is
// asked for again, but not one that could.
func TestOrderFunc(t *testing.T) {
	indices, calls := []int{0, 1, 2}, 0
	s := OrderFunc(3, func(epoch int) []int {
		if calls++; calls == 1 {
			panic("not yet")
		}
		slices.Sort(indices)
		indices[0], indices[epoch] = indices[epoch], indices[0]
		return indices
	})
	loader := newLoader(t, numbers(3), Options{Sampler: s})
	equal(t, "first", len(outcomes(loader.Epoch(t.Context(), 0))), 1)
	order := s.Order(1)
	equal(t, "again", samples(t, loader, 0), upTo(3))
	equal(t, "epoch 1", []int{order(0), order(1), order(2)}, []int{1, 0, 2})
	equal(t, "by Batch", must(loader.Batch(t.Context(), 0, 1)), []int{1})
	equal(t, "calls", calls, 3)
}

// TestOrderIsMadeOnce checks that calls at once make the order of an epoch
// once. The first one makes it when the others have begun, and they wait.
func TestOrderIsMadeOnce(t *testing.T) {
	const calls = 8
	var begun, made atomic.Int64
	loader := newLoader(t, numbers(calls), Options{Sampler: OrderFunc(calls, func(int) []int {
		made.Add(1)
		for begun.Load() < calls {
			runtime.Gosched()
		}
		for range 1000 { // the others come as far as here, if they do not wait
			runtime.Gosched()
		}
		return upTo(calls)
	})})
	var running sync.WaitGroup
	for k := range calls {
		running.Go(func() {
			begun.Add(1)
			must(loader.Batch(context.Background(), 0, k))
		})
	}
	running.Wait()
	equal(t, "orders that are made", made.Load(), 1)
}

// TestResize checks that a resized sampler walks on through the epochs of the
// one inside.
func TestResize(t *testing.T) {
	s, endless := Random(7, 1), []int{}
	for epoch := range 30 {
		endless = append(endless, positions(s, epoch)...)
	}
	for count := 1; count <= 30; count++ {
		for epoch := range 6 {
			equal(t, fmt.Sprint(count), positions(Resize(s, count), epoch), endless[epoch*count:(epoch+1)*count])
		}
	}
	made := 0
	border := Resize(sampler{n: 7, order: func(epoch int) func(int) int { made++; return s.Order(epoch) }}, 10).Order(0)
	for pos := range 10 { // two workers, on either side of the border between two passes
		border(6 + pos%2)
	}
	equal(t, "orders that are made", made, 2)
	equal(t, "of nothing", Resize(OrderFunc(0, func(int) []int { return nil }), 0).Len(), 0)
	far := errorOf(newLoader(t, numbers(5), Options{Sampler: Resize(Sequential(5), 20)}).Batch(t.Context(), math.MaxInt/3, 0))
	saysAll(t, far, "Resize: ", "too far")
	equal(t, "an ErrCursor", errors.Is(far, ErrCursor), true)
}

// TestReplacement checks that each draw is by the weights, or by the weights of
// what is left, however large or small they are, and that weight 0 is never
// drawn. RandomWithReplacement is uniform in many short epochs. Draws are those
// of a search in all sums, for numbers at the borders, too, and those of a sort
// of all waiting times.
func TestReplacement(t *testing.T) {
	fits := func(drawn []int, weights ...float64) {
		t.Helper()
		counts := make([]int, len(weights))
		for _, i := range drawn {
			counts[i]++
		}
		if z := zScore(t, counts, weights...); math.Abs(z) > 4 {
			t.Errorf("%.1f standard deviations from %v", z, weights[:min(9, len(weights))])
		}
	}
	same := slices.Repeat([]float64{.1}, 100)
	fits(positions(Resize(RandomWithReplacement(100, 10, 5), 100000), 0), same...)
	for _, weights := range [][]float64{{0, 1, 0, 3}, {1e308, 1e308, 5e307}, {1e-300, 3e-300}, {0, 5}, {1, 1e-9, 1, 0, 1}, same} {
		fits(positions(must(Weighted(weights, 100000, true, 3)), 0), weights...)
	}
	var pairs []int // as one number
	for epoch := range 20000 {
		drawn := positions(must(Weighted([]float64{2, 0, 6, 1}, 2, false, 2)), epoch)
		pairs = append(pairs, drawn[0]*4+drawn[1])
	}
	fits(pairs, 0, 0, 2./9*6/7, 2./9*1/7, 0, 0, 0, 0, 6./9*2/3, 0, 0, 6./9*1/3, 1./9*2/8, 0, 1./9*6/8, 0)
	equal(t, "all", sorted(positions(must(Weighted([]float64{1, 0, 1e-300, 1e300}, 3, false, 2)), 3)), []int{0, 2, 3})
	step := uint64(golden) // with the seed -2 × step random number 1 is 0
	equal(t, "the first, with a waiting time of 0", drawShortest([]float64{1, 1, 1}, 1, 3)(-step-step)(0), 1)
	for n, spread := range map[int]float64{1: 0, 300: 1e-13, 2000: 30, 3000: 1e-12, 5000: 1400} {
		weights, sums, times, order, sum := make([]float64, n), make([]float64, n), make([]float64, n), upTo(n), 0.0
		for i := range n {
			weights[i] = math.Exp(700 - spread*float64(i*7919%n)/float64(n))
			sum += weights[i] / weights[0] // the largest
			sums[i], times[i] = sum, -math.Log(1-unit(counter(hash(0, 0, uint64(n)), uint64(i))))/(weights[i]/weights[0])
		}
		find := newGuide(sums)
		for i, s := range slices.Repeat(sums, 3) {
			x := math.Nextafter(s, s*float64(i/n)) // below s, s, above s; with small spreads at borders of parts
			equal(t, "found", find(x), sort.Search(n, func(j int) bool { return sums[j] > x }))
		}
		slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(times[i], times[j]) })
		few, all := must(Weighted(weights, n/8+1, false, 0)), must(Weighted(weights, n, false, 0))
		allocates(t, "few of many", 30000, func() { few.Order(0) })
		clear(weights) // of which the samplers have copies
		equal(t, "few", positions(few, 0), order[:n/8+1])
		equal(t, "all", positions(all, 0), order)
	}
	a, b := must(Weighted([]float64{1, 2}, 2, true, 0)), must(Weighted([]float64{2, 1}, 2, true, 0))
	equal(t, "whether other weights have the same description", fmt.Sprint(a) == fmt.Sprint(b), false)
}

// TestBuckets checks that batches by length keep to the budget, waste little
// and have every sample once, anew in every epoch.
func TestBuckets(t *testing.T) {
	const budget = 1000
	random := rand.New(rand.NewPCG(1, 2))
	lengths, total := make([]int, 2000), 0
	for i := range lengths {
		lengths[i] = int(random.ExpFloat64() * 50)
		total += lengths[i]
	}
	s := must(Buckets(lengths, budget, 5))
	contents, shapes := map[string]bool{}, map[string]bool{} // of the epochs
	for epoch := range 3 {
		var all [][]int
		var longests []int
		padded := 0
		for k := range s.Len() {
			batch := sorted(s.Batches(epoch)(k))
			longest := lengths[slices.MaxFunc(batch, func(i, j int) int { return lengths[i] - lengths[j] })]
			all, longests, padded = append(all, batch), append(longests, longest), padded+longest*len(batch)
			failIf(t, longest*len(batch) > budget, "batch %d has %d samples of at most %d", k, len(batch), longest)
		}
		equal(t, "all samples", sorted(slices.Concat(all...)), upTo(len(lengths)))
		waste := 1 - float64(total)/float64(padded)
		failIf(t, waste > .1, "%.0f %% of the batches is padding", 100*waste)
		slices.SortFunc(all, slices.Compare)
		contents[fmt.Sprint(all)], shapes[fmt.Sprint(longests)] = true, true
	}
	equal(t, "different orders of batches, and batches", []int{len(shapes), len(contents)}, []int{3, 3})
	other := must(Buckets(append(slices.Clone(lengths[1:]), 3), budget, 5))
	equal(t, "whether other lengths have the same description", fmt.Sprint(s) == fmt.Sprint(other), false)
	equal(t, "no samples", must(Buckets(nil, 1, 0)).Len(), 0)
	equal(t, "the longest", must(Buckets([]int{math.MaxInt, 1}, math.MaxInt, 0)).Len(), 2)
	equal(t, "no lengths", len(must(Buckets(make([]int, 7), 3, 0)).Batches(0)(0)), 2)
}

// FuzzDeal checks what each rank gets, from any position, for every length,
// number of ranks and batch size. After each step all ranks have the same
// cursor, which At gives too, and before its Pos are the samples that they have
// had together.
func FuzzDeal(f *testing.F) {
	for k := range 400 {
		f.Add(k%17, k%7*(k%3), k/2, k/5, k%8 == 0, k%3)
	}
	f.Fuzz(func(t *testing.T, n, from, count, size int, dropLast bool, tail int) {
		n, count, size, tail = int(uint(n)%200), 1+int(uint(count)%9), 1+int(uint(size)%20), int(uint(tail)%3)
		from = int(uint(from) % uint(n+1))
		opts := Options{BatchSize: size, DropLast: dropLast, Rank: Rank{0, count}, Tail: Tail(tail)}
		if noBatch(n, opts) {
			saysAll(t, errorOf(New(numbers(n), List[int], opts)), "leave no batch")
			return
		}
		for opts.Rank.Index = range count {
			loader, got := newLoader(t, numbers(n), opts), [][]int{}
			at := Cursor{Epoch: 5, Pos: from, State: map[string]string{"by": fmt.Sprintf("Sequential(%d)", n)}}
			want := at
			for batch := range loader.Run(t.Context(), &at) {
				got = append(got, batch)
				want.Pos = min(n, from+len(got)*count*size)
				equal(t, "the cursor after a step", at.String(), want.String())
				if from == 0 && len(got) < loader.Len() {
					equal(t, "the cursor by At", loader.At(3, 2*loader.Len()+len(got)).String(), want.String())
				}
			}
			equal(t, fmt.Sprintf("%d from %d, %+v", n, from, opts), got, expect(upTo(n), from, opts))
			equal(t, "the next epoch, if one has batches", loader.At(5, loader.Len()), Cursor{Epoch: 5 + min(1, loader.Len())})
		}
	})
}

// TestHuge checks lengths and batch sizes near the largest int.
func TestHuge(t *testing.T) {
	loader := newLoader(t, numbers(5), Options{BatchSize: math.MaxInt, Rank: Rank{1, 2}})
	equal(t, "one batch of all", batches(t, loader, 0), [][]int{{1, 3, 0}})
	saysAll(t, errorOf(New(numbers(math.MaxInt), List[int], Options{})), "length", strconv.Itoa(math.MaxInt), "must be 0 to")
	const n = math.MaxInt/4 + 1
	loader = newLoader(t, numbers(n), Options{BatchSize: n / 4, Rank: Rank{2, 3}})
	equal(t, "batches, position after the first", []int{loader.Len(), loader.At(0, 1).Pos}, []int{2, 3 * (n / 4)})
	at := Cursor{Pos: n - 7, State: map[string]string{"by": fmt.Sprintf("Sequential(%d)", n)}}
	loader = newLoader(t, numbers(n), Options{BatchSize: 2, Rank: Rank{2, 3}, Workers: 2})
	equal(t, "the end", collect(t, loader.Run(t.Context(), &at)), [][]int{{n - 5, n - 2}, {1}})
}

// TestTails checks what each of four ranks loads of ten samples under each
// Tail.
func TestTails(t *testing.T) {
	for _, c := range []struct {
		name string
		tail Tail
		size int
		want string // the batches of each rank
	}{
		{"PadTail, batches of 3", PadTail, 3, "[[0 4 8]] [[1 5 9]] [[2 6 0]] [[3 7 1]]"},
		{"DropTail, batches of 3", DropTail, 3, "[[0 4]] [[1 5]] [[2 6]] [[3 7]]"},
		{"UnevenTail, batches of 3", UnevenTail, 3, "[[0 4 8]] [[1 5 9]] [[2 6]] [[3 7]]"},
		{"PadTail, batches of 2", PadTail, 2, "[[0 4] [8]] [[1 5] [9]] [[2 6] [0]] [[3 7] [1]]"},
		{"DropTail, batches of 2", DropTail, 2, "[[0 4]] [[1 5]] [[2 6]] [[3 7]]"},
		{"UnevenTail, batches of 2", UnevenTail, 2, "[[0 4] [8]] [[1 5] [9]] [[2 6]] [[3 7]]"},
	} {
		runRow(t, c.name, func(t *testing.T) {
			var got []string
			for rank := range 4 {
				opts := Options{BatchSize: c.size, Tail: c.tail, Rank: Rank{rank, 4}}
				got = append(got, fmt.Sprint(batches(t, newLoader(t, numbers(10), opts), 0)))
			}
			equal(t, "ten samples on four ranks", strings.Join(got, " "), c.want)
			t.Logf("%s: %s", c.name, c.want)
		})
	}
	at, got := Cursor{}, ""
	readFirst(newLoader(t, numbers(10), Options{Rank: Rank{1, 4}}).Run(t.Context(), &at))
	// Four ranks have taken 0, 1, 2 and 3, and all have this cursor.
	for rank := range 3 {
		got += fmt.Sprint(collect(t, newLoader(t, numbers(10), Options{Rank: Rank{rank, 3}}).Run(t.Context(), ptr(at))), " ")
	}
	equal(t, "the rest of the epoch on three ranks", got, "[[4] [7]] [[5] [8]] [[6] [9]] ")
	t.Logf("batches of 1, a checkpoint of four ranks after one step, %v, continued by three: %s", at, got)
}

// TestRankFromEnv checks the variables of each launcher, which of them comes
// first, and numbers that make no sense.
func TestRankFromEnv(t *testing.T) {
	all := strings.Fields("RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE FLUX_TASK_RANK FLUX_JOB_SIZE " +
		"PMI_RANK PMI_SIZE SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS JOB_COMPLETION_INDEX")
	cases := [][2]string{
		{"", "no error, {0 0}"},
		{"WORLD_SIZE=1", "no error, {0 0}"},
		{"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=4 PMI_RANK=2 PMI_SIZE=5", "no error, {1 4}"},
		{"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=16", "no error, {3 8}"},
		{"SLURM_PROCID=0 SLURM_NTASKS=8 PMI_RANK=1 PMI_SIZE=3", "no error, {1 3}"}, // mpirun in an sbatch script
		{"SLURM_PROCID=0 SLURM_NTASKS=8", `SLURM_PROCID is "0" and SLURM_STEP_NUM_TASKS is ""; the second must be the number of ` +
			`processes, the first 0 to one less; start it with srun; in a container, pass`},
		{"SLURM_PROCID=3", `SLURM_PROCID is "3"`}, // in a container, to which only this was passed on
		{"SLURM_PROCID=0 SLURM_NTASKS=1", "no error, {0 0}"},
		{"SLURM_PROCID=0 JOB_COMPLETION_INDEX=5 WORLD_SIZE=6", "no error, {5 6}"},
		{"RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 FLUX_TASK_RANK=2 FLUX_JOB_SIZE=4", "no error, {0 2}"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 FLUX_TASK_RANK=2 FLUX_JOB_SIZE=4", "no error, {1 3}"},
		{"RANK= WORLD_SIZE=4", `RANK is "" and WORLD_SIZE is "4"`},
		{"RANK=2", `RANK is "2" and WORLD_SIZE is ""`},
		{"WORLD_SIZE=4", `WORLD_SIZE is "4" but RANK is not set`},
		{"RANK=4 WORLD_SIZE=4", `RANK is "4" and WORLD_SIZE is "4"`},
		{"RANK=-1 WORLD_SIZE=4", `RANK is "-1"`},

		// In a step of Slurm with several processes. What mpirun and Flux set
		// is that of the step which started their daemons.
		{"RANK=0 WORLD_SIZE=1 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4",
			"WORLD_SIZE is 1, and SLURM_STEP_NUM_TASKS is 4; unset RANK and WORLD_SIZE if they are left over, or SLURM_STEP_NUM_TASKS if"},
		{"PMI_RANK=0 PMI_SIZE=1 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4", "PMI_SIZE is 1, and SLURM_STEP_NUM_TASKS is 4; unset PMI_RANK"},
		{"RANK=5 WORLD_SIZE=8 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4", "no error, {5 8}"}, // torchrun on four nodes
		{"RANK=3 WORLD_SIZE=4 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4", "no error, {3 4}"},
		{"PMI_RANK=3 PMI_SIZE=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "no error, {3 4}"},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", "no error, {0 1}"},
		{"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=3", "no error, {1 2}"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1", "no error, {1 2}"},
	}
	for _, name := range strings.Fields("PMIX_RANK PMI_ID MV2_COMM_WORLD_RANK JSM_NAMESPACE_RANK PALS_RANKID ALPS_APP_PE " +
		"HOROVOD_RANK LSF_PM_TASKID PET_NODE_RANK VC_TASK_INDEX LWS_WORKER_INDEX AWS_BATCH_JOB_NODE_INDEX") {
		all, cases = append(all, name), append(cases, [2]string{name + "=0", "no error, {0 0}"},
			[2]string{name + "=1", name + ` is "1", and the number of processes is not known; set RANK and WORLD_SIZE`})
	}
	for _, c := range cases {
		runRow(t, c[0], func(t *testing.T) {
			for _, name := range all {
				t.Setenv(name, "") // so that it is put back
				must(0, os.Unsetenv(name))
			}
			for _, setting := range strings.Fields(c[0]) {
				name, value, _ := strings.Cut(setting, "=")
				t.Setenv(name, value)
			}
			rank, err := RankFromEnv()
			saysAll(t, cmp.Or(err, fmt.Errorf("no error, %v", rank)), c[1])
		})
	}
}

// TestBadSamplers checks that arguments that can never be right are refused.
func TestBadSamplers(t *testing.T) {
	weighted := func(count int, replace bool, weights ...float64) error {
		return errorOf(Weighted(weights, count, replace, 0))
	}
	buckets := func(budget int, lengths ...int) error { return errorOf(Buckets(lengths, budget, 0)) }
	panics(t, map[string]func(){
		"Sequential … -1":                                func() { Sequential(-1) },
		"Random … -1":                                    func() { Random(-1, 0) },
		"TorchRandom … -1":                               func() { TorchRandom(-1, 0) },
		"TorchRandom … 214748364 … 214748363":            func() { TorchRandom(maxTorch+1, 0) },
		"RandomWithReplacement … -1":                     func() { RandomWithReplacement(-1, 1, 0) },
		"RandomWithReplacement … count is 0 … positive":  func() { RandomWithReplacement(3, 0, 0) },
		"RandomWithReplacement: count is -1":             func() { RandomWithReplacement(3, -1, 0) },
		"RandomWithReplacement: count is 1 … no samples": func() { RandomWithReplacement(0, 1, 0) },
		"OrderFunc … nil":                                func() { OrderFunc(1, nil) },
		"OrderFunc … -1":                                 func() { OrderFunc(-1, func(int) []int { return nil }) },
		"Resize … nil":                                   func() { Resize(nil, 1) },
		"Resize … count is 0":                            func() { Resize(Sequential(3), 0) },
		"Batches … size is 0 … positive":                 func() { Batches(Sequential(3), 0, false) },
		"Batches … nil":                                  func() { Batches(nil, 1, false) },
	})
	refused(t, []refusal{
		{panicOf(func() { TorchRandom(maxTorch, 0) }), ""},
		{weighted(1, true, 1, -1), "Weighted … weights[1] is -1 … not negative"},
		{weighted(1, true, 1, math.NaN()), "Weighted … weights[1] is NaN"},
		{weighted(1, false, math.Inf(1)), "Weighted … weights[0] is +Inf … finite"},
		{weighted(1, true, 0, 0), "Weighted … none of the 2 weights is positive"},
		{weighted(0, true, 1), "Weighted … count is 0 … positive"},
		{weighted(3, false, 1, 2), "Weighted … count is 3 … at most 2"},
		{weighted(2, false, 1, 0, 0), "Weighted … count is 2 … at most 1"},
		{buckets(8, 1, 9), "Buckets … lengths[1] is 9 … 8, the budget"},
		{buckets(8, -1), "Buckets … lengths[0] is -1"},
		{buckets(0), "Buckets … budget is 0 … positive"},
	})
}

// ## batch.go: what samples become

// TestStackAndPad checks the shape and the memory of the batch. Stack wants
// samples of one shape; Pad fills up the shorter. The error of a pair's Collate
// says which half has failed.
func TestStackAndPad(t *testing.T) {
	type tensor = Tensor[int]
	two, five := tensor{[]int{1, 2}, []int{2}}, tensor{[]int{5}, nil}
	batch := must(Stack(tensor{}, []tensor{two, {[]int{3, 4}, []int{2}}}))
	equal(t, "two vectors", batch, tensor{[]int{1, 2, 3, 4}, []int{2, 2}})
	again := must(Stack(batch, []tensor{{[]int{5, 6}, []int{1, 2}}}))
	equal(t, "one matrix", again, tensor{[]int{5, 6}, []int{1, 1, 2}})
	equal(t, "Stack uses the memory of dst", &again.Data[0] == &batch.Data[0], true)
	equal(t, "numbers", must(Stack(tensor{}, []tensor{five, five})), tensor{[]int{5, 5}, []int{2}})
	one := []int{1}
	for _, other := range []tensor{{one, one}, {[]int{1, 2, 3}, []int{3}}, {[]int{1, 2}, []int{2, 1}}, {one, []int{2}}} {
		saysAll(t, errorOf(Stack(tensor{}, []tensor{two, other})), "sample 1", "shape [2]", fmt.Sprint(other.Shape))
	}
	saysAll(t, errorOf(Stack(tensor{}, []tensor{{Data: []int{1, 2}}})), "sample 0", "shape []", "2 elements; set Shape")
	saysAll(t, errorOf(Stack(tensor{}, nil)), "no samples")
	pad := Pad(-1)
	ragged := must(pad(Padded[int]{}, [][]int{{1}, {2, 3, 4}, {}}))
	equal(t, "three", fmt.Sprint(ragged), "{{[1 -1 -1 2 3 4 -1 -1 -1] [3 3]} [1 3 0]}")
	equal(t, "one, in used memory", fmt.Sprint(must(pad(ragged, [][]int{{7, 8}}))), "{{[7 8] [1 2]} [2]}")
	equal(t, "empty ones", fmt.Sprint(must(pad(ragged, [][]int{{}, {}}))), "{{[] [2 0]} [0 0]}")
	pairs := CollatePair(Stack[int], func(dst int, _ []int) (int, error) { return dst, errBad })
	for want, data := range map[string][]int{"the first of each pair: Stack": {1, 2}, "the second of each pair: bad sample": one} {
		saysAll(t, errorOf(pairs(Pair[tensor, int]{}, []Pair[tensor, int]{{First: tensor{Data: data}}})), want)
	}
}

// TestRecycle checks that batches are built in memory that was given back, or
// that a batch left when all of it was dropped. Four loops at once do not meet.
func TestRecycle(t *testing.T) {
	for _, workers := range []int{0, 3} {
		table := must(Rows(Tensor[int]{upTo(200), []int{100, 2}}))
		loader := must(New(table, Stack[int], Options{BatchSize: 5, Workers: workers}))
		most := workers*2 + 2                  // batches in flight, and in hand
		loop := func(keep bool) (places int) { // of memory; four batches may be kept
			memory, all, kept := map[*int]bool{}, []int{}, [][]int{}
			for batch := range loader.Epoch(t.Context(), 0) {
				memory[&batch.Data[0]] = true
				if all = append(all, batch.Data...); keep && len(all)%50 == 10 {
					kept = append(kept, batch.Data)
				} else {
					loader.Recycle(batch)
				}
			}
			equal(t, "batches", all, upTo(200))
			for i, batch := range kept {
				equal(t, "a batch that was kept", batch, all[50*i:50*i+10])
			}
			return len(memory)
		}
		keeping, places := loop(true), loop(false)
		failIf(t, keeping > most+4 || places > most,
			"%d places, and %d with 4 batches kept, want at most %d, and 4 more", places, keeping, most)
		t.Logf("%d workers: 20 batches, all recycled: memory was allocated for %d", workers, places)
		var all sync.WaitGroup
		for k := range 4 {
			all.Go(func() { loop(k%2 == 0) })
		}
		all.Wait()
	}
	loader, memory := newLoader(t, failing(3, 1), Options{OnError: dropBad}), map[*int]bool{}
	for batch := range loader.Epoch(t.Context(), 0) {
		memory[&batch[0]] = true
		loader.Recycle(batch)
	}
	equal(t, "places of batches between empty ones", len(memory), 1)
}

// TestBatchRecycles checks that calls of Batch build in memory that was given
// back, and that as much is kept as they need at once, and two more.
func TestBatchRecycles(t *testing.T) {
	var fresh atomic.Int64 // calls that got no memory
	var atOnce sync.WaitGroup
	loader := must(NewBatchFunc(10, func(_ context.Context, dst, _ []int) ([]int, error) {
		if cap(dst) == 0 {
			fresh.Add(1)
		}
		atOnce.Done()
		atOnce.Wait()
		return append(dst[:0], 1), nil
	}, Options{}))
	for _, round := range []struct{ calls, fresh int }{{5, 5}, {5, 0}, {8, 1}} {
		fresh.Store(0)
		atOnce.Add(round.calls)
		batches := make(chan []int, round.calls)
		for k := range round.calls {
			go func() { batches <- must(loader.Batch(context.Background(), 0, k)) }()
		}
		for range round.calls {
			loader.Recycle(<-batches)
		}
		for range 3 { // no more than 5 and 2 are kept
			loader.Recycle(make([]int, 1))
		}
		equal(t, fmt.Sprint(round.calls, " calls: without memory"), int(fresh.Load()), round.fresh)
	}
	dropping := newLoader(t, failing(2, 0), Options{OnError: dropBad})
	dropping.Recycle([]int{7, 8})
	for range 2 {
		batch, err := dropping.Batch(t.Context(), 0, 0)
		failIf(t, batch != nil || err == nil, "a batch without samples: %v, %v", batch, err)
	}
	equal(t, "memory that is left", cap(must(dropping.Batch(t.Context(), 0, 1))), 2)
}

// ## worker.go: two versions that fail, time, order, and every way to stop

// TestNaivePool checks why the engine's queues have room: the pool that comes
// to mind first leaks its workers when the loop is left, because nobody
// receives what they send. With room for all results it ends, and needs no
// select.
func TestNaivePool(t *testing.T) {
	for room, want := range []int{3, 3, 2, 1, 0} {
		runRow(t, fmt.Sprintf("room for %d", room), func(t *testing.T) {
			var blocked atomic.Int64
			err := panicOf(func() {
				synctest.Test(t, func(*testing.T) {
					tasks, results := make(chan int, 5), make(chan int, room)
					for k := range 5 {
						tasks <- k
					}
					close(tasks)
					for range 3 {
						go func() {
							for k := range tasks {
								blocked.Add(1)
								results <- k // blocks for ever if there is no room and nobody receives
								blocked.Add(-1)
							}
						}()
					}
					<-results // the loop is left after one
				})
			})
			equal(t, "workers blocked", int(blocked.Load()), want)
			equal(t, "whether goroutines remain", err != nil, want > 0)
			t.Logf("room for %d results, 5 tasks, 3 workers, a break after one result: %d workers are blocked for ever", room, want)
		})
	}
}

// TestGeneratorPerWorker checks why Rand exists: with a generator for each
// worker and a shared queue, the number of a sample depends on which worker
// takes it, and so on how long the others take. The numbers of Rand do not.
func TestGeneratorPerWorker(t *testing.T) {
	var theirs, ours []int // the numbers of sample 4 in ten runs
	for run := range uint64(10) {
		seeded := func(worker uint64) *rand.Rand { return rand.New(rand.NewPCG(worker, 0)) }
		generators := []*rand.Rand{seeded(0), seeded(1), seeded(2)}
		takes := jitter(run + 10)
		data := Func(20, func(ctx context.Context, i int) ([2]int, error) {
			time.Sleep(takes(i))
			return [2]int{generators[Worker(ctx)].IntN(1000), Rand(ctx).IntN(1000)}, nil
		})
		inBubble(t, func(t *testing.T) {
			fourth := samples(t, newLoader(t, data, Options{Workers: 3}), 0)[4]
			theirs, ours = append(theirs, fourth[0]), append(ours, fourth[1])
		})
	}
	differ := func(numbers []int) bool { return slices.Min(numbers) != slices.Max(numbers) }
	equal(t, "whether numbers differ with a generator per worker", differ(theirs), true)
	equal(t, "whether numbers differ with Rand", differ(ours), false)
	t.Log("sample 4 in ten runs, with a generator per worker:", theirs, "with Rand:", ours)
}

// TestWallTime checks exact times, in fake time: 20 samples of 0.1 s, in
// batches of one, for a loop that trains on each for 0.1 s, and for one that
// does nothing.
func TestWallTime(t *testing.T) {
	const each = 100 * time.Millisecond
	for _, c := range []struct {
		workers        int
		training, want time.Duration
	}{
		{0, each, 40 * each}, {1, each, 21 * each}, {4, each, 21 * each}, {100, each, 21 * each},
		{0, 0, 20 * each}, {1, 0, 20 * each}, {4, 0, 5 * each}, {100, 0, each},
	} {
		row := fmt.Sprintf("%d workers, %v of training a batch", c.workers, c.training)
		runRow(t, row, func(t *testing.T) {
			for _, unordered := range []bool{false, true} {
				inBubble(t, func(t *testing.T) {
					start := time.Now()
					loader := newLoader(t, &probe{n: 20, takes: always(each)}, Options{Workers: c.workers, Unordered: unordered})
					for range loader.Epoch(t.Context(), 0) {
						time.Sleep(c.training)
					}
					equal(t, fmt.Sprint("Unordered ", unordered), time.Since(start), c.want)
				})
			}
			t.Logf("%s: %v", row, c.want)
		})
	}
}

// TestWindow checks when a larger window helps, with the batches of the
// picture: 40 or 50 ms each, batch 2 takes 190 ms. With three workers the
// window is 6 or 12. When a batch trains for 10 ms, training is the limit, and
// a larger window changes nothing. When it trains for less, workers would stand
// idle behind batch 2 with window 6; with 12 order costs nothing.
func TestWindow(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		training time.Duration
		want     string
	}{
		{10 * ms, "290ms, with window 12 290ms, out of order 250ms"},
		{5 * ms, "285ms, with window 12 245ms, out of order 245ms"},
		{0, "280ms, with window 12 240ms, out of order 240ms"},
	} {
		row := fmt.Sprint("a batch trains for ", c.training)
		runRow(t, row, func(t *testing.T) {
			var times []any
			for _, opts := range []Options{{Prefetch: 2}, {Prefetch: 4}, {Prefetch: 2, Unordered: true}} {
				inBubble(t, func(t *testing.T) {
					opts.Workers = 3
					start := time.Now()
					for range newLoader[int](t, newScenario(), opts).Epoch(t.Context(), 0) {
						time.Sleep(c.training)
					}
					times = append(times, time.Since(start).Truncate(5*ms))
				})
			}
			equal(t, row, fmt.Sprintf("%v, with window 12 %v, out of order %v", times...), c.want)
			t.Logf("%s: with window 6 %s", row, c.want)
		})
	}
	t.Log("690 ms of loading, by three workers that are never idle: the last of them ends after 240 ms")
}

// TestStuckBatch checks that while batch 0 does not come, at most window
// batches are loaded. Out of order it takes up one place, and the others come.
// When it comes, or fails, all come.
func TestStuckBatch(t *testing.T) {
	sticks := func(i int) time.Duration { return time.Hour * time.Duration(max(0, 1-i)) } // sample 0
	for _, c := range []struct {
		unordered  bool
		early, all []int // handed over, loaded and loading while batch 0 is stuck; handed over in the end
	}{{false, []int{0, 3, 1}, upTo(20)}, {true, []int{19, 19, 1}, append(upTo(20)[1:], 0)}} {
		row := fmt.Sprint("Unordered ", c.unordered)
		runRowInBubble(t, row, func(t *testing.T) {
			data, all, early := &probe{n: 20, bad: []int{0}, takes: sticks}, []int{}, 0
			start, stuck := time.Now(), make(chan []int, 1)
			time.AfterFunc(time.Minute, func() {
				loading := int(data.running.Load())
				stuck <- []int{int(data.begun.Load()) - loading, loading}
			})
			for batch, err := range newLoader(t, data, Options{Workers: 2, Unordered: c.unordered}).Epoch(t.Context(), 0) {
				if err != nil {
					batch = []int{0}
				}
				if all = append(all, batch...); time.Since(start) < time.Hour {
					early = len(all)
				}
			}
			got := append([]int{early}, <-stuck...)
			equal(t, "handed over, loaded and loading while batch 0 is stuck", got, c.early)
			equal(t, "in the end", all, c.all)
			t.Logf("%s, while batch 0 hangs: handed over %d, loaded %d, loading %d", row, got[0], got[1], got[2])
		})
	}
}

// TestBreakWaits checks that a break waits for the Gets that run: as long as
// they take if they do not look at their context.
func TestBreakWaits(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		row := fmt.Sprint("Get looks at its context: ", !deaf)
		runRowInBubble(t, row, func(t *testing.T) {
			t.Logf("%s; the loop has ended after %v", row, leave(t, "break", 0, 2, deaf))
		})
	}
}

// TestEverySchedule runs the engine through every schedule. Tasks, body and
// context belong to the world of the test. Whenever all goroutines wait, the
// world lets one event happen: a task that has begun ends, by Goexit or not;
// the body goes on, or breaks; the context ends. A schedule is a list of
// events. The test plays all schedules of small engines. Before each event it
// counts all tasks, those sent, begun and done, and those whose results the
// body has taken, and checks:
//
//	sent  = min(all, taken + window)
//	begun = min(sent, done + workers)
//	The loop does not wait if a result is ready that it may hand over: in order that of task number taken, out of order any.
//	After the end, which is a break or that of the context, no task begins.
//	When the loop has returned, no task runs. Without an end all results have been taken: each once, in order if ordered.
//
// Between two events the goroutines take their steps in the order that the Go
// scheduler chooses. Other orders are not played, and the context ends only
// while all goroutines wait. So three hangs are not seen: a worker that drops
// its slot, or returns, when the context has ended, and a reader that then
// sends no end. TestEnds notices all three.
func TestEverySchedule(t *testing.T) {
	rows := [][3]int{{0, 0, 3}, {1, 1, 3}, {1, 2, 4}, {2, 2, 3}, {2, 2, 5}, {3, 3, 4}, {3, 4, 5}} // workers, window, tasks
	if testing.Short() {
		rows = rows[:len(rows)-1]
	}
	orders := []string{"in order", "out of order", "from a stream"}
	if runFromStream == nil {
		orders = orders[:2]
	}
	for _, row := range rows {
		for _, order := range orders {
			runRow(t, fmt.Sprintf("%d workers, window %d, %d tasks, %s", row[0], row[1], row[2], order), func(t *testing.T) {
				worst, played := &world{schedule: make([]string, 99)}, 0 // worst has the shortest schedule that goes wrong
				for queue := [][]string{nil}; len(queue) > 0; queue, played = queue[1:], played+1 {
					w := &world{workers: row[0], window: row[1], all: row[2], order: order, schedule: queue[0]}
					w.most = len(worst.schedule)
					leak := panicOf(func() { synctest.Test(t, w.play) })
					if w.wrong = cmp.Or(w.wrong, leak); w.wrong != nil && len(w.schedule) < w.most {
						worst = w
					}
					queue = append(queue, w.others...)
				}
				schedule := strings.Join(append([]string{"the loop begins"}, worst.schedule...), ", ")
				failIf(t, worst.wrong != nil, "%s: %v", schedule, worst.wrong)
				t.Logf("%d schedules", played)
			})
		}
	}
}

// A world is what an engine runs in. Between two events each field has one
// writer.
type world struct {
	workers, window, all int
	order                string     // "in order", "out of order" or, with a reader and in order, "from a stream"
	most                 int        // fewer events than these are played
	schedule             []string   // the events
	others               [][]string // schedules that begin like this one, to be played, too

	events            [][]string    // that each task, the body, and the end of the context wait for
	happened          []chan string // tells each of them which event has happened
	sent, begun, done atomic.Int64
	taken, mustBegin  int    // mustBegin is how many tasks must have begun, and after the end no more
	ready             []bool // the results that have not been taken
	ended, returned   bool   // by a break or the context; the loop
	wrong, panicked   error
}

// play plays the schedule, and after it the first event that is possible, again
// and again.
func (w *world) play(t *testing.T) {
	w.events, w.happened, w.ready = make([][]string, w.all+2), make([]chan string, w.all+2), make([]bool, w.all+1)
	go w.run(t.Context())
	for n := 0; n < w.most && w.check(); n++ {
		if n == len(w.schedule) {
			possible := slices.Concat(w.events...)
			for _, other := range possible[1:] {
				w.others = append(w.others, append(slices.Clip(w.schedule), other))
			}
			w.schedule = append(w.schedule, possible[0])
		}
		event := w.schedule[n]
		w.ended = w.ended || event == "the body breaks" || event == "the context ends" ||
			w.workers == 0 && strings.HasSuffix(event, "Goexit") // which ends the loop's goroutine
		for who, events := range w.events {
			if slices.Contains(events, event) {
				w.events[who] = nil
				w.happened[who] <- event
				break
			}
		}
	}
}

// check waits until all goroutines wait, and checks what must be true then. It
// reports whether the schedule goes on.
func (w *world) check() bool {
	synctest.Wait()
	sent, begun, done := min(w.all, int(w.sent.Load())), int(w.begun.Load()), int(w.done.Load())
	inBody, window, workers := w.events[w.all] != nil, w.window, w.workers
	if workers == 0 && !inBody {
		window, workers = 1, 1 // the loop's goroutine
	}
	mustSend := min(w.all, w.taken+window)
	if !w.ended {
		w.mustBegin = min(mustSend, done+workers)
	}
	waits := !inBody && !w.returned
	ready := w.ready[w.taken] || w.order == "out of order" && done > w.taken
	w.wrong = cmp.Or(w.wrong, w.panicked,
		errorIf(!w.ended && waits && ready, "the loop waits, although a result is ready"),
		errorIf(waits && begun == done, "the loop waits for ever"),
		errorIf(!w.ended && sent != mustSend, "%d tasks sent, must be %d", sent, mustSend),
		errorIf(begun != w.mustBegin, "%d tasks begun, must be %d", begun, w.mustBegin),
		errorIf(w.returned && begun > done, "the loop has returned, and %d tasks run", begun-done),
		errorIf(w.returned && !w.ended && w.taken < w.all, "the loop has returned with %d of %d results", w.taken, w.all))
	return w.wrong == nil && !w.returned
}

// run runs the loop. When over ends, nothing waits for events any more. Of 4
// tasks the first may end by Goexit, of 3 the first two. Tasks with odd numbers
// do not heed their context.
func (w *world) run(over context.Context) {
	defer func() { w.returned = true }()
	ctx, cancel := context.WithCancel(over)
	go func() {
		w.wait(over, w.all+1, "the context ends")
		cancel()
	}()
	slots := make([]Item[int], w.window+1) // the number of the task in each
	e := engine{workers: w.workers, window: w.window, ordered: w.order == "in order"}
	e.nextTask = func(slot int) bool {
		slots[slot].Value = int(w.sent.Add(1)) - 1
		return slots[slot].Value < w.all
	}
	work := func(worker worker, slot int) {
		if slots[slot].Err != nil { // the end of the stream
			return
		}
		k := slots[slot].Value
		w.begun.Add(1)
		defer func() { w.ready[k] = true; w.done.Add(1) }()
		ends := "task " + strconv.Itoa(k) + " ends"
		events := []string{ends, ends + " by Goexit"}
		if k >= 5-w.all {
			events = events[:1]
		}
		if w.wait([]context.Context{worker.ctx, over}[k%2], k, events...) == ends+" by Goexit" {
			runtime.Goexit()
		}
	}
	e.newWork = func(w worker) func(int) { return func(slot int) { work(w, slot) } }
	body := func(slot int) bool {
		if ctx.Err() != nil {
			return false
		}
		k := slots[slot].Value
		w.wrong = errorIf(!w.ready[k] || w.order != "out of order" && k != w.taken, "the body takes result %d out of turn", k)
		w.ready[k] = false
		w.taken++
		return w.wait(over, w.all, "the body goes on", "the body breaks") == "the body goes on"
	}
	run := e.run
	if w.order == "from a stream" && w.workers > 0 {
		run = func(ctx context.Context, body func(int) bool) { runFromStream(ctx, w, e, slots, body) }
	}
	w.panicked = panicOf(func() { run(ctx, body) })
}

// runFromStream runs the engine of a world with a reader. The second reading
// sets it.
var runFromStream func(ctx context.Context, w *world, e engine, slots []Item[int], body func(slot int) bool)

// wait waits for one of the events, and returns it. If ctx ends, it is "".
func (w *world) wait(ctx context.Context, who int, events ...string) (event string) {
	w.events[who], w.happened[who] = events, make(chan string)
	select {
	case event = <-w.happened[who]:
	case <-ctx.Done():
		w.events[who] = nil
	}
	return event
}

// TestUserCodeThatDies checks that a panic in any user code, and in a worker a
// Goexit, fails its batch and nothing else.
func TestUserCodeThatDies(t *testing.T) {
	const goexit = "runtime.Goexit was called"
	for name, die := range map[string]func(){"panic: EOF": func() { panic(io.EOF) }, goexit: runtime.Goexit} {
		runRow(t, name, func(t *testing.T) {
			at := func(bad int) func(int) int {
				return func(i int) int {
					if i == bad {
						die()
					}
					return i
				}
			}
			get := Func(6, func(_ context.Context, i int) (int, error) { return at(2)(i), nil })
			collate := func(dst []int, samples []int) ([]int, error) {
				at(2)(samples[0])
				return List(dst, samples)
			}
			load := func(_ context.Context, dst, indices []int) ([]int, error) { return collate(dst, indices) }
			order := sampler{n: 6, name: "dying", order: func(int) func(int) int { return at(2) }}
			batchSampler := batchSampler{n: 3, name: "dying", batches: func(int) func(int) []int {
				return func(k int) []int { return []int{2 * at(1)(k), 2*k + 1} }
			}}
			dying := func(*SampleError) error { die(); return nil }
			inBatch1, inSample2 := "[[0 1] #1: "+name+" [4 5]]", "[[0 1] #1, sample 2: "+name+" [4 5]]"
			least, dropped := 0, "[[0 1] [3] [4 5]]"
			if name == goexit { // without workers it ends the caller; OnError does not decide about a sample that ends the goroutine
				least, dropped = 1, inSample2
			}
			all := []loading{
				{"Get", get, nil, Options{BatchSize: 2}, inSample2},
				{"Get, dropped", get, nil, Options{BatchSize: 2, OnError: dropBad}, dropped},
				{"load", atOnce{n: 6, load: load}, nil, Options{BatchSize: 2, OnError: dropBad}, inBatch1},
				{"collate", numbers(6), collate, Options{BatchSize: 2}, inBatch1},
				{"sampler, after a bad sample", failing(6, 1), nil, Options{BatchSize: 2, Sampler: order},
					strings.Replace(inBatch1, "[0 1]", "#0, sample 1: bad sample", 1)},
				{"batch sampler", numbers(6), nil, Options{BatchSampler: batchSampler}, inBatch1},
				{"OnError", failing(6, 2), nil, Options{BatchSize: 2, OnError: dying}, strings.Replace(inSample2, name, "OnError: "+name, 1)},
			}
			for _, l := range all[:len(all)-least] { // OnError runs in the loop's goroutine, which a Goexit would end
				l.check(t, least)
			}
		})
	}
}

// TestPanicPlace: the text of a panic names the first frame in the user's code,
// not one in the standard library or in this package, in whatever user code it
// happens. Without a frame of the user's it names none.
func TestPanicPlace(t *testing.T) {
	_, file, line, _ := runtime.Caller(0)
	for k, die := range []func(){
		func() { panic(errBad) },
		func() { panic(fmt.Sprint(1 / min(0, line))) },
		func() { Rand(context.Background()) },
		func() { _ = strings.Repeat("x", -line) },
	} {
		if k == 3 && !filepath.IsAbs(file) {
			break // with -trimpath the files of the standard library have no common path
		}
		runRow(t, fmt.Sprint("panic ", k), func(t *testing.T) {
			get := func(_ context.Context, i int) (int, error) { die(); return i, nil }
			collate := func(dst, _ []int) ([]int, error) { die(); return dst, nil }
			for workers := range 2 {
				opts, traced := Options{Workers: workers}, Options{Workers: workers, Trace: func(Timing) { die() }}
				errs := []error{
					ending(newLoader(t, Func(1, get), opts).Epoch(t.Context(), 0)),
					ending(newLoader(t, numbers(1), traced).Epoch(t.Context(), 0)),
					ending(must(New(numbers(1), collate, opts)).Epoch(t.Context(), 0)),
				}
				if dyingStreams != nil {
					errs = append(errs, dyingStreams(t, workers, die)...)
				}
				for _, err := range errs {
					says := []string{"bad sample", "", "Rand: the context is from no loader", ""}[k]
					saysAll(t, err, "panic: ", says, fmt.Sprintf(" (dataloader_test.go:%d)", line+2+k))
					p := new(PanicError)
					equal(t, "whether it is a panic", errors.As(err, &p), true)
					equal(t, "whether its cause is found", errors.Is(err, errBad), k == 0)
					saysAll(t, errors.New(string(p.Stack)), "TestPanicPlace")
					equal(t, "lines", strings.Count(err.Error(), "\n"), 0)
				}
			}
		})
	}
	equal(t, "the place without a panic", placeOfPanic(), "")
	equal(t, "one line", (&PanicError{Value: errors.Join(errBad, io.EOF)}).Error(), "panic: bad sample; EOF")
	outside := newLoader(t, numbers(12), Options{Sampler: sampler{n: 12, name: "short", order: Random(10, 1).Order}})
	short := newLoader(t, numbers(2), Options{Sampler: OrderFunc(2, func(int) []int { return nil })})
	saysAll(t, errorOf(outside.Batch(t.Context(), 0, 11)),
		"dataloader: epoch 0, batch 11: panic: runtime error: index out of range [11] with length 10")
	saysAll(t, errorOf(short.Batch(t.Context(), 0, 0)),
		"dataloader: epoch 0: the sampler: panic: OrderFunc: the order of epoch 0 has 0 positions, must have 2")
}

// dyingStreams returns the last errors of streams in which die is called. The
// second reading sets it.
var dyingStreams func(t *testing.T, workers int, die func()) []error

// TestAllocations checks that with Recycle a batch of an epoch under way costs
// no allocation.
func TestAllocations(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("an execution trace allocates for each batch")
	}
	fill := func(_ context.Context, dst, indices []int) ([]int, error) { return append(dst[:0], indices...), nil }
	for workers := range 3 {
		opts := Options{BatchSize: 4, Shuffle: true, Workers: workers}
		recycles(t, "List", newLoader(t, numbers(4000), opts))
		recycles(t, "NewBatchFunc", must(NewBatchFunc(4000, fill, opts)))
		recycles(t, "Stack", must(New(must(Rows(Tensor[int]{make([]int, 8000), []int{4000, 2}})), Stack[int], opts)))
	}
}

// recycles checks that an epoch of 1000 batches, all recycled, has the
// allocations of one, and of the first batches.
func recycles[B any](t *testing.T, what string, loader *DataLoader[B]) {
	runRow(t, fmt.Sprintf("%s, workers %d", what, loader.opts.Workers), func(t *testing.T) {
		each := testing.AllocsPerRun(5, func() {
			for batch := range loader.Epoch(t.Context(), 0) {
				loader.Recycle(batch)
			}
		})
		failIf(t, each > 150, "an epoch of 1000 batches has %v allocations", each)
	})
}

// ## dataloader.go: the notebook's tests, by their names

// TestNotebook loads the notebook's data as its tests do: 20 samples of 2×3×5
// numbers, with labels of which each occurs twice, and a tenth of a second to
// fetch one. Each sample comes once, with its own label, in order unless
// shuffled, and in time.
func TestNotebook(t *testing.T) {
	for name, opts := range map[string]Options{
		"test_sequential":               {},
		"test_sequential_batch":         {BatchSize: 2},
		"test_sequential_workers":       {Workers: 4},
		"test_sequential_batch_workers": {BatchSize: 2, Workers: 2},
		"test_shuffle":                  {Shuffle: true},
		"test_shuffle_batch":            {Shuffle: true, BatchSize: 2},
		"test_shuffle_workers":          {Shuffle: true, Workers: 4},
		"test_shuffle_batch_workers":    {Shuffle: true, BatchSize: 2, Workers: 4},
	} {
		runRowInBubble(t, name, func(t *testing.T) {
			const n, each = 20, 100 * time.Millisecond
			random := rand.New(rand.NewPCG(0, 0))
			images, labels := Tensor[float64]{make([]float64, n*30), []int{n, 2, 3, 5}}, make(Slice[int], n)
			for j := range images.Data {
				images.Data[j] = random.NormFloat64()
			}
			for i := range labels {
				labels[i] = i * 7 % (n / 2)
			}
			type sample = Pair[Tensor[float64], int]
			slow := Transform(must(Pairs(must(Rows(images)), labels)), func(_ context.Context, s sample) (sample, error) {
				time.Sleep(each)
				return s, nil
			})
			size, start, found := max(opts.BatchSize, 1), time.Now(), []int{}
			for _, batch := range batches(t, must(New(slow, CollatePair(Stack[float64], List[int]), opts)), 0) {
				equal(t, "shape", batch.First.Shape, []int{size, 2, 3, 5})
				for j, label := range batch.Second {
					i := slices.Index(images.Data, batch.First.Data[j*30]) / 30
					equal(t, "sample", batch.First.Data[j*30:(j+1)*30], images.Data[i*30:(i+1)*30])
					equal(t, "label of its own sample", label, labels[i])
					found = append(found, i)
				}
			}
			rounds := (n/size + max(opts.Workers, 1) - 1) / max(opts.Workers, 1)
			equal(t, "time", time.Since(start), time.Duration(rounds*size)*each)
			equal(t, "in order", slices.IsSorted(found), !opts.Shuffle)
			equal(t, "found", sorted(found), upTo(n))
		})
	}
}

// TestPartialWorkers checks that however a loop is left, at whatever batch, the
// calls of Get that are under way are waited for, and no other begins, not even
// for a batch that has begun. A Get that honours its context delays nothing. A
// cancelled loop ends with the cause, without a question to OnError.
func TestPartialWorkers(t *testing.T) {
	for _, way := range []string{"break", "panic", "Goexit", "cancel"} {
		runRow(t, way, func(t *testing.T) {
			eachWorkers(t, []int{0, 1, 4}, func(t *testing.T, workers int) {
				for k := range 12 * 2 {
					leave(t, way, k/2, workers, k%2 == 1)
				}
			})
		})
	}
}

// leave leaves a loop at a batch, and returns how long that took. If deaf, Get
// does not look at its context.
func leave(t *testing.T, way string, stop, workers int, deaf bool) (took time.Duration) {
	data, enough := &probe{n: 40, takes: always(time.Hour), deaf: deaf}, errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var left time.Time
	var begun, running int64 // the calls of Get when the loop is left
	var late, after int64    // those that begin later, and those that run after the loop
	var errs []error
	var loop sync.WaitGroup
	loop.Go(func() {
		defer func() {
			if r := recover(); r != nil && r != "of the loop body" {
				panic(r)
			}
			took, late, after = time.Since(left), data.begun.Load()-begun, data.running.Load()
		}()
		n := -1
		asked := func(e *SampleError) error { t.Errorf("OnError is asked about %v", e); return nil }
		for _, err := range newLoader(t, data, Options{Workers: workers, BatchSize: 3, OnError: asked}).Epoch(ctx, 0) {
			if n++; err != nil {
				errs = append(errs, err)
			}
			if n != stop {
				continue
			}
			synctest.Wait()
			left, begun, running = time.Now(), data.begun.Load(), data.running.Load()
			switch way {
			case "break":
				return
			case "panic":
				panic("of the loop body")
			case "Goexit":
				runtime.Goexit()
			}
			cancel(enough)
		}
	})
	loop.Wait()
	want := map[bool]time.Duration{true: time.Hour}[deaf && running > 0]
	equal(t, way+": Gets that run after the loop", after, 0)
	equal(t, way+": Gets that began after it was left", late, 0)
	equal(t, way+": the time to leave", took, want)
	if stop == 0 {
		equal(t, "calls of Get during the loop", int(running), workers)
	}
	equal(t, way+": errors", errs, map[string][]error{"cancel": {enough}}[way])
	return took
}

// ## The loader's conformance: what PyTorch's tests and its behaviour say

// TestSamplerOrderIsBatchOrder checks that a sampler's order is the order of
// the batches. (In one Go peer it never was.)
func TestSamplerOrderIsBatchOrder(t *testing.T) {
	data := &probe{n: 50, takes: jitter(1)}
	own := OrderFunc(3, func(epoch int) []int { return []int{epoch, 1, 1} })
	for _, s := range []Sampler{Sequential(50), Random(50, 42), RandomWithReplacement(50, 60, 3), own} {
		want := fmt.Sprint(slices.Collect(slices.Chunk(positions(s, 2), 7)))
		loading{fmt.Sprint(s), data, nil, Options{Sampler: s, BatchSize: 7}, want}.check(t, 0)
	}
}

// ## The loader's errors

// TestFailures checks that what fails comes as an error at its position, and
// the rest as if nothing had happened. Where ranks must take equal steps, a
// batch whose samples are all dropped fails.
func TestFailures(t *testing.T) {
	fails := func([]int, []int) ([]int, error) { return nil, errBad }
	eof := Func(3, func(context.Context, int) (int, error) { return 0, io.EOF })
	slow := &probe{n: 10, bad: []int{3}, takes: jitter(4)} // samples 0 and 1 take longer than 2 and 3
	sixteen := fmt.Sprint(upTo(16))                        // indices, and no more
	outside := OrderFunc(4, func(int) []int { return []int{0, -2, 1, 3} })
	ranks := func(count int, tail Tail) Options {
		return Options{Rank: Rank{0, count}, Tail: tail, OnError: dropBad}
	}
	const unequal = "[[0] #1: all samples were dropped, and ranks must take equal steps: " +
		"take this one with weight 0, or use UnevenTail [4] [6]]"
	loadFails := func(_ context.Context, dst, _ []int) ([]int, error) { return dst, errBad }
	two, drop := Options{BatchSize: 2}, Options{BatchSize: 3, OnError: dropBad}
	for _, l := range []loading{
		{"a bad sample", slow, nil, two, "[[0 1] #1, sample 3: bad sample [4 5] [6 7] [8 9]]"},
		{"bad ones dropped", failing(12, 0, 3, 4, 5, 11), nil, drop, "[[1 2] [6 7 8] [9 10]]"},
		{"no sample is good", failing(5, upTo(5)...), nil, two, "[#0, sample 0: bad sample #1, sample 2: bad sample #2, sample 4: bad sample]"},
		{"the end of a file", eof, nil, two, "[#0, sample 0: EOF #1, sample 2: EOF]"},
		{"collate", numbers(2), fails, Options{}, "[#0: collating 1 samples [0]: bad sample #1: collating 1 samples [1]: bad sample]"},
		{"collate, dropping", failing(3, 1), fails, drop, "[#0: collating 2 samples [0 2]: bad sample]"},
		{"collate 20", numbers(20), fails, Options{BatchSize: 20}, "[#0: collating 20 samples " + sixteen + ": bad sample]"},
		{"indices outside", &probe{n: 3}, nil, Options{Sampler: outside, OnError: dropBad}, "[[0] #1: the sampler: index -2 is " +
			"outside the data set, which has 3 samples [1] #3: the sampler: index 3 is outside the data set, which has 3 samples]"},
		{"no index", numbers(3), nil, Options{BatchSampler: fixedBatches{{0}, {}, {2}}}, "[[0] #1: the sampler gave no index [2]]"},
		{"load fails, OnError not asked", atOnce{n: 3, load: loadFails}, nil, drop, "[#0: bad sample]"},
		{"all dropped", failing(8, 2), nil, ranks(0, 0), "[[0] [1] [3] [4] [5] [6] [7]]"},
		{"all dropped, UnevenTail", failing(8, 2), nil, ranks(2, UnevenTail), "[[0] [4] [6]]"},
		{"all dropped, PadTail", failing(8, 2), nil, ranks(2, PadTail), unequal},
	} {
		l.check(t, 0)
	}
}

// TestNoOrder checks that a sampler that yields no order is the last error of
// the loop, no *SampleError, whatever its panic. An epoch without batches needs
// no order. A cancelled Batch is no *SampleError either, whatever the cause.
func TestNoOrder(t *testing.T) {
	bad, die := &SampleError{Err: errBad}, func(int) func(int) int { panic("ouch") }
	own := func(order func(int) func(int) int) Options {
		return Options{Sampler: sampler{n: 4, name: "own", order: order}}
	}
	noBatches := batchSampler{n: 4, name: "own", batches: func(int) func(int) []int { return nil }}
	for what, opts := range map[string]Options{
		"panic: ouch":             own(die),
		"panic: " + bad.Error():   own(func(int) func(int) int { panic(bad) }),
		"the order is nil":        own(func(int) func(int) int { return nil }),
		"panic: the order is nil": {BatchSampler: noBatches},
		"OrderFunc: the order of epoch 2 has 1 positions, must have 4": {Sampler: OrderFunc(4, func(int) []int { return []int{0} })},
	} {
		runRow(t, what, func(t *testing.T) {
			for opts.Workers = range 2 {
				l, at := newLoader(t, numbers(4), opts), Cursor{Epoch: 2}
				for _, err := range []error{ending(l.Run(t.Context(), &at)), errorOf(l.Batch(t.Context(), 2, 1))} {
					saysAll(t, err, "dataloader: epoch 2: ", what)
					equal(t, "a *SampleError", isSampleError(err), false)
				}
				equal(t, "the cursor", at, Cursor{Epoch: 2})
			}
		})
	}
	empty := newLoader(t, numbers(0), Options{Sampler: sampler{name: "own", order: die}})
	equal(t, "an empty epoch", outcomes(empty.Epoch(t.Context(), 0)), []string{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(bad)
	err := errorOf(newLoader(t, numbers(4), Options{}).Batch(ctx, 0, 0))
	equal(t, "a *SampleError, its cause", fmt.Sprint(isSampleError(err), errors.Is(err, errBad)), "false true")
}

// TestOnError checks that bad samples are dropped from their batches, or fail
// them, as OnError says. OnError hears of them in the order of the batches, and
// no more of a batch that it has failed. A batch of which nothing is left is
// not collated, but traced. The cursor stays before a failed batch, which a
// resume tries again, until the next success. Batch is not traced.
func TestOnError(t *testing.T) {
	eachWorkers(t, []int{0, 1, 4}, func(t *testing.T, workers int) {
		var got, heard, traced []string
		var collated atomic.Int64
		budget, start := 4, time.Now()
		trace := func(tm Timing) {
			traced = append(traced, fmt.Sprint(tm.Epoch, ":", tm.Batch, ":", tm.Samples, tm.Dropped))
			inTime, by := !tm.Sent.Before(start) && !tm.Start.Before(tm.Sent), tm.Worker
			failIf(t, !inTime || by < min(0, workers-1) || by >= workers, "%d workers: %+v", workers, tm)
		}
		collate := func(dst, samples []int) ([]int, error) {
			if collated.Add(1); samples[0] == 15 {
				return nil, errors.New("collate")
			}
			return List(dst, samples)
		}
		data := &probe{n: 24, bad: []int{0, 6, 7, 8, 12, 13, 19}}
		loader := must(New(data, collate, Options{BatchSize: 3, Workers: workers, Trace: trace,
			OnError: func(e *SampleError) error {
				heard = append(heard, fmt.Sprint(e.Batch, ":", e.Index))
				if budget--; budget == -1 {
					return fmt.Errorf("more than 4 bad samples: %w", e)
				} else if budget < 0 {
					return errors.New("enough")
				}
				return nil
			}}))
		at, failed := Cursor{Epoch: 2}, Cursor{}
		for batch, err := range loader.Run(t.Context(), &at) {
			if got = append(got, fmt.Sprint(at.Pos), outcomes(one(batch, err))[0]); err != nil {
				failed = throughJSON(t, at)
			}
		}
		equal(t, "positions and outcomes", fmt.Sprint(got), "[3 [1 2] 6 [3 4 5] 12 [9 10 11] "+
			"12 error dataloader: epoch 2, batch 4, sample 12: OnError: more than 4 bad samples: epoch 2, batch 4, sample 12: bad sample "+
			"12 error dataloader: epoch 2, batch 5: collating 3 samples [15 16 17]: collate "+
			"12 error dataloader: epoch 2, batch 6, sample 19: OnError: enough 24 [21 22 23]]")
		equal(t, "in the end", at, Cursor{Epoch: 3})
		equal(t, "heard", fmt.Sprint(heard), "[0:0 2:6 2:7 2:8 4:12 6:19]")
		equal(t, "collated", collated.Load(), 7)
		budget = 3
		saysAll(t, errorOf(loader.Batch(t.Context(), 0, 2)), "batch 2", "all samples were dropped")
		data.bad = nil
		healed := collect(t, newLoader(t, data, Options{BatchSize: 3, Workers: workers, Trace: trace}).Run(t.Context(), &failed))
		equal(t, "healed", fmt.Sprint(healed), "[[12 13 14] [15 16 17] [18 19 20] [21 22 23]]")
		equal(t, "traced", fmt.Sprint(traced), "[2:0:2 1 2:1:3 0 2:2:0 3 2:3:3 0 2:4:0 0 2:5:0 0 2:6:0 0 2:7:3 0 "+
			"2:4:3 0 2:5:3 0 2:6:3 0 2:7:3 0]")
	})
}

// ## The loader's cursors

// TestResumeExhaustive checks every small length, batch size, rank, tail and
// number of workers, and batch samplers, whose batches are dealt out whole:
// what comes is what should, and a resume anywhere, by any workers, neither
// loses nor repeats.
func TestResumeExhaustive(t *testing.T) {
	workers := 0 // each deal has another number, in the loop and in the resume
	for n := range 11 {
		if testing.Short() && n%5 != 0 {
			continue
		}
		for _, rank := range []Rank{{0, 0}, {0, 1}, {0, 2}, {1, 2}, {0, 3}, {1, 3}, {2, 3}} {
			for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
				for o := range 8 {
					opts := Options{BatchSize: 1 + o/2, DropLast: o%2 == 1, Shuffle: true, Seed: 7, Rank: rank, Tail: tail}
					if noBatch(n, opts) {
						continue // refused
					}
					want := fmt.Sprint(expect(positions(Random(n, 7), 2), 0, opts))
					workers++
					l := loading{"exhaustive", numbers(n), nil, opts, want}
					if workers%5 == 0 {
						l.data = atOnce{n: n, load: func(_ context.Context, dst, indices []int) ([]int, error) { return List(dst, indices) }}
					}
					l.checkWith(t, workers%4, 0, workers/4%4)
				}
				opts, want := Options{BatchSampler: Batches(Random(3*n, 7), 3, false), Rank: rank, Tail: tail}, [][]int{}
				for _, k := range expect(upTo(n), 0, Options{Rank: rank, Tail: tail}) {
					want = append(want, opts.BatchSampler.Batches(2)(k[0]))
				}
				if !noBatch(n, Options{Rank: rank, Tail: tail}) {
					loading{"dealt", numbers(3 * n), nil, opts, fmt.Sprint(want)}.checkWith(t, n%4, 0, (n+1)%4)
				}
			}
		}
	}
}

// TestUnorderedResume checks that after random stops, in order and out of it,
// every batch comes exactly once.
func TestUnorderedResume(t *testing.T) {
	resumes, lost, twice := 0, 0, 0
	for seed := range uint64(100) {
		inBubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			data := &probe{n: 30 + random.IntN(60), takes: jitter(seed)}
			data.bad = slices.DeleteFunc(upTo(data.n), func(i int) bool { return i%7 != 3 })
			opts := Options{BatchSize: 1 + random.IntN(3), Shuffle: true, Seed: seed, Rank: Rank{random.IntN(2), 2}, Tail: UnevenTail}
			opts.OnError = []func(*SampleError) error{nil, dropBad}[seed%2]
			want, got := outcomes(newLoader(t, data, opts).Epoch(t.Context(), 1)), []string{}
			at := Cursor{Epoch: 1}
			for tries := 0; at.Epoch == 1 && tries < 1000; tries++ {
				opts.Workers, opts.Unordered = random.IntN(5), random.IntN(3) > 0
				stop, pos := random.IntN(4), at.Pos
				resumes++
				for batch, err := range newLoader(t, data, opts).Run(t.Context(), &at) {
					outcome := outcomes(one(batch, err))[0]
					if err == nil || !slices.Contains(got, outcome) { // what failed just before the stop is tried again
						got = append(got, outcome)
					}
					equal(t, "whether pos goes back", at.Pos < pos, false)
					if pos, stop = at.Pos, stop-1; stop < 0 {
						break
					}
				}
				if random.IntN(2) == 0 {
					at = throughJSON(t, at)
				}
			}
			missing := slices.DeleteFunc(slices.Clone(want), func(outcome string) bool { return slices.Contains(got, outcome) })
			lost, twice = lost+len(missing), twice+len(got)-(len(want)-len(missing))
		})
	}
	t.Logf("100 epochs, left and continued %d times, with 0 to 4 workers: %d batches lost, %d came twice", resumes, lost, twice)
	equal(t, "lost, and twice", []int{lost, twice}, []int{0, 0})
}

// FuzzCursor checks that arbitrary bytes as a cursor never panic, hang or
// repeat a batch.
func FuzzCursor(f *testing.F) {
	const state = `"state":{"by":"Random(20, seed 1)","seed":1,"rank":{"Index":0,"Count":1},"size":2,"done":`
	for _, rest := range []string{"0," + state + "[[1,3],[5,6]]}", "4," + state + "[[1,9223372036854775807]]}", "1e99"} {
		f.Add([]byte(`{"epoch":1,"pos":` + rest + "}"))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, workers := range []int{0, 2} {
			var at Cursor
			if json.Unmarshal(data, &at) != nil {
				return
			}
			opts := Options{BatchSize: 2, Shuffle: true, Seed: 1, Workers: workers, Unordered: true}
			seen := []int{}
			for batch, err := range newLoader(t, numbers(20), opts).Run(t.Context(), &at) {
				seen = append(seen, batch...)
				failIf(t, err != nil && len(seen) > 0, "%v", err)
			}
			equal(t, "samples that come twice", len(seen)-distinct(seen), 0)
		}
	})
}

// TestCursorJSON checks that a State is the same before and after JSON, with
// every integer exact, and shares no memory. A description that is not UTF-8
// survives, too. What is no cursor is refused, and is not taken for the start
// of epoch 0.
func TestCursorJSON(t *testing.T) {
	type state struct {
		Big   int64
		Huge  uint64
		Inner []Cursor
	}
	made := state{math.MinInt64 + 1, math.MaxUint64 - 1, []Cursor{{1, 2, map[string]int64{"a": 1<<62 + 1}}, {}}}
	c := Cursor{Epoch: 1, Pos: math.MaxInt - 2, State: made}
	for _, loaded := range []Cursor{c, throughJSON(t, c), throughJSON(t, throughJSON(t, c))} {
		var got state
		inner := map[string]int64{}
		must(0, loaded.Load(&got))
		must(0, got.Inner[0].Load(&inner))
		got.Inner[0].State, loaded.State = inner, got
		equal(t, "a loaded cursor", loaded, c)
		got.Inner[1].Pos = 9
		equal(t, "no memory is shared", made.Inner[1].Pos, 0)
	}
	saysAll(t, c.Load(new(int)), fmt.Sprint("epoch 1, pos ", c.Pos), "does not fit")
	equal(t, "JSON", string(must(json.Marshal(Cursor{Epoch: 3, Pos: 7744}))), `{"epoch":3,"pos":7744}`)
	equal(t, "no pos", fromJSON(t, `{"epoch":3}`), Cursor{Epoch: 3})
	equal(t, "a null state", fromJSON(t, `{"epoch":3,"pos":0,"state":null}`), Cursor{Epoch: 3})
	equal(t, "as another program may write it", fromJSON(t, `{"Epoch":1,"POS":2}`), Cursor{Epoch: 1, Pos: 2})

	const ownField = "dataloader: … keep the cursor in a field of its own"
	const noEpoch = "dataloader: refused cursor: its JSON has no epoch"
	const other = "dataloader: refused cursor: this is JSON of something else"
	equal(t, "ErrCursor alone", ErrCursor.Error(), "refused cursor")
	for text, want := range map[string]string{
		`null`:                                 "",
		`{}`:                                   noEpoch,
		`{"epoch":null}`:                       noEpoch,
		`{"epoch":1,"state":{"by":"Take(5)"}}`: "dataloader: … a state and no pos",
		`{"step":7}`:                           ownField,
		`{"Weights":[1],"At":{"epoch":1,"pos":0}}`: ownField,
		`[]`:                    other,
		`{"epoch":4,"pos":"x"}`: other,
		`{"epoch":"3"}`:         other,
		`{"epoch":1.5}`:         other,
	} {
		runRow(t, text, func(t *testing.T) {
			at := Cursor{Epoch: 5}
			err := json.Unmarshal([]byte(`{"At":`+text+`}`), &struct{ At *Cursor }{&at})
			if err != nil || want != "" {
				saysAll(t, err, want)
			}
			equal(t, "an ErrCursor", errors.Is(err, ErrCursor), want != "")
			equal(t, "the advice", strings.Contains(fmt.Sprint(err), "embed"), want == ownField)
			equal(t, "the cursor", at, Cursor{Epoch: 5})
		})
	}
	kept := struct{ At Cursor }{Cursor{Epoch: 5}}
	must(0, json.Unmarshal([]byte(`{"At":null}`), &kept)) // which calls UnmarshalJSON, unlike the null of a pointer
	equal(t, "a cursor that is null", kept.At, Cursor{Epoch: 5})
	saysAll(t, new(Cursor).UnmarshalJSON([]byte(`{"epoch":1}{"epoch":2}`)), other)
	odd := Cursor{State: func() {}}
	equal(t, "a cursor that cannot be saved", odd.String(), errorOf(json.Marshal(odd)).Error())
	at, names := Cursor{Epoch: 1}, sampler{n: 4, name: "caf\xe9", order: Sequential(4).Order}
	loader := newLoader(t, numbers(4), Options{Sampler: names})
	readFirst(loader.Run(t.Context(), &at))
	before := at
	equal(t, "a cursor can be compared with itself", before == at, true)
	equal(t, "the rest", collect(t, loader.Run(t.Context(), ptr(throughJSON(t, at)))), [][]int{{1}, {2}, {3}})
}

// TestBadOptions checks that options that make no sense are refused, with the
// field, its value, what is allowed, and no more. So are options that leave no
// rank a batch although there are samples, and orders for another number of
// samples.
func TestBadOptions(t *testing.T) {
	some, three := numbers(3), newLoader(t, numbers(3), Options{})
	sized := func(n int, opts Options) error { return errorOf(New(numbers(n), List[int], opts)) }
	loader := func(opts Options) error { return sized(3, opts) }
	ranks := func(n, size, count int, tail Tail) error {
		return sized(n, Options{BatchSize: size, DropLast: true, Rank: Rank{count - 1, count}, Tail: tail})
	}
	batched := func(n int, b BatchSampler) error { return sized(n, Options{BatchSampler: b}) }
	weighted, buckets := must(Weighted([]float64{1, 2, 3, 4, 5}, 2, true, 1)), must(Buckets([]int{1, 2, 3}, 9, 1))
	pairs, none, missing := Batches(Resize(weighted, 4), 2, true), fixedBatches{}, (*DataLoader[int])(nil)
	const excludes = "= dataloader: Options.BatchSampler excludes "
	panics(t, map[string]func(){
		"Run: the cursor is nil … new(Cursor)":             func() { three.Run(t.Context(), nil) },
		"At: epoch is 0 and k is -1, must not be negative": func() { three.At(0, -1) },
		"At: epoch is -1":        func() { three.At(-1, 0) },
		"At: epoch is … too far": func() { three.At(math.MaxInt, 1) },
	})
	refused(t, []refusal{
		{errorOf(New(Dataset[int](nil), List[int], Options{})), "data set is nil"},
		{errorOf(New(some, (Collate[int, []int])(nil), Options{})), "Collate is nil"},
		{errorOf(New(&probe{n: -5}, List[int], Options{})), "number of samples is -5 … must not be negative"},
		{errorOf(NewBatchFunc[int](3, nil, Options{})), "NewBatchFunc: load is nil"},
		{panicOf(func() { missing.Run(t.Context(), new(Cursor)) }), "= panic dataloader: the loader is nil; look at the error of New"},
		{panicOf(func() { missing.Len() }), "= panic dataloader: the loader is nil; look at the error of New"},
		{panicOf(func() { missing.At(0, 0) }), "= panic dataloader: the loader is nil; look at the error of New"},
		{panicOf(func() { missing.Batch(t.Context(), 0, 0) }), "= panic dataloader: the loader is nil; look at the error of New"},
		{panicOf(func() { missing.Recycle(0) }), "= panic dataloader: the loader is nil; look at the error of New"},
		{errorOf(three.Batch(t.Context(), -1, 0)), "batch 0 of epoch -1: epochs begin at 0"},
		{errorOf(three.Batch(t.Context(), 0, -1)), "batch -1 … 3 batches"},
		{errorOf(three.Batch(t.Context(), 0, 3)), "batch 3 … 3 batches"},
		{loader(Options{DataVersion: "\xff"}), `Options.DataVersion is "\xff", must be UTF-8`},
		{loader(Options{BatchSize: -1}), "Options.BatchSize is -1 … positive"},
		{loader(Options{Workers: -1}), "Options.Workers is -1 … not be negative"},
		{loader(Options{Workers: 1, Prefetch: -2}), "Options.Prefetch is -2 … positive"},
		{loader(Options{Prefetch: 4}), "Options.Prefetch is 4 without workers … set Workers"},
		{loader(Options{Workers: math.MaxInt, Prefetch: 3}), "Options.Workers × Prefetch … × 3 … less than 2^31"},
		{loader(Options{Sampler: Sequential(3), Shuffle: true}), "Options.Sampler excludes Shuffle"},
		{loader(Options{BatchSampler: none, BatchSize: 2}), excludes + "BatchSize (2); leave it unset"},
		{loader(Options{BatchSampler: none, Shuffle: true}), excludes + "Shuffle (true); leave it unset"},
		{loader(Options{BatchSampler: none, DropLast: true}), excludes + "DropLast (true); leave it unset"},
		{loader(Options{BatchSampler: none, Sampler: Sequential(1)}), excludes + "Sampler; leave it unset"},
		{loader(Options{Rank: Rank{3, 3}}), "Options.Rank … Index: 3 … Count: 3 … 0 to 2"},
		{loader(Options{Rank: Rank{-1, 3}}), "Options.Rank … Index: -1 … 0 to 2"},
		{loader(Options{Rank: Rank{1, 0}}), "Options.Rank … Index: 1 … set Count"},
		{loader(Options{Rank: Rank{0, 1<<20 + 1}}),
			"= dataloader: Options.Rank is {Index: 0, Count: 1048577}; Count must be 0 to 1048576, and Index 0 to 1048575"},
		{loader(Options{Rank: Rank{1<<20 - 1, 1 << 20}}), ""},
		{loader(Options{Rank: Rank{0, -1}}), "Options.Rank … Count: -1 … must be 0 to"},
		{loader(Options{Tail: 7}), "Options.Tail is 7 … UnevenTail"},
		{loader(Options{Tail: -1}), "Options.Tail is -1"},
		{loader(Options{Sampler: sampler{n: -3}}), "dataloader.sampler is -3 … must be 0 to"},
		{sized(4, Options{Sampler: weighted}), "Weighted(2 of 5, … is for 5 samples, the data set has 4 … a weight"},
		{sized(6, Options{Sampler: Resize(Resize(weighted, 3), 4)}), "Resize(Resize(Weighted( … for 5 samples … has 6"},
		{batched(6, pairs), "Batches(Resize(Weighted( … for 5 samples … has 6"},
		{batched(5, buckets), "Buckets(3, … is for 3 samples, the data set has 5 … a length"},
		{loader(Options{BatchSize: 4, DropLast: true}), "no batch of 3 samples … Sequential(3) … BatchSize 4, DropLast true"},
		{ranks(10, 4, 4, PadTail), "10 samples … BatchSize 4, DropLast true, Rank.Count 4, DropTail false … smaller batches"},
		{ranks(10, 3, 4, DropTail), "no batch of 10 samples … DropTail true"},
		{ranks(3, 1, 4, DropTail), "no batch of 3 samples … fewer ranks"},
		{batched(10, Batches(Sequential(10), 64, true)), "Batches(Sequential(10), 64, dropLast) is empty, and there are 10 samples"},
		{batched(0, Batches(Sequential(0), 2, true)), ""},
		{sized(10, Options{Sampler: Sequential(0)}), "Sequential(0) is empty, and there are 10 samples"},
	})
	const tooFar = "65 … is for 65 samples, the data set has 64; … Buckets a length, and other orders an n of at most 64"
	for _, s := range []Sampler{
		Sequential(65), Random(65, 1), TorchRandom(65, 1), RandomWithReplacement(65, 9, 1), Resize(Random(65, 1), 100),
	} {
		runRow(t, fmt.Sprint(s), func(t *testing.T) {
			for n, want := range map[int]string{64: tooFar, 65: "", 66: ""} {
				refusal{sized(n, Options{Sampler: s}), want}.check(t)
				refusal{batched(n, Batches(s, 8, true)), want}.check(t)
			}
		})
	}
}

// TestForgotten checks what can be collected while the loop goes on: the
// samples of a batch that has failed, and the batches that the body has had.
// New takes no memory for batches that are not there yet.
func TestForgotten(t *testing.T) {
	type sample = [64]byte
	var fetched []weak.Pointer[sample]
	get := func(_ context.Context, i int) (*sample, error) {
		if i >= 9 {
			return nil, map[int]error{9: errBad}[i]
		}
		s := new(sample)
		fetched = append(fetched, weak.Make(s))
		return s, nil
	}
	count := func(_ int, samples []*sample) (int, error) { return len(samples), nil }
	for workers := range 2 {
		opts, k := Options{BatchSampler: fixedBatches{upTo(10), {10}, {11}, {12}, {13}, {14}}, Workers: workers}, 0
		fetched = nil
		for range must(New(Func(20, get), count, opts)).Epoch(t.Context(), 0) {
			if k++; k >= 5 {
				equal(t, "samples, those in memory", fmt.Sprint(len(fetched) > 0, alive(fetched)), "true 0")
			}
		}
	}
	for workers := range 3 {
		var had []weak.Pointer[int]
		for batch := range newLoader(t, numbers(80), Options{BatchSize: 8, Workers: workers}).Epoch(t.Context(), 0) {
			equal(t, fmt.Sprintf("of %d batches had before, those that a slot has kept", len(had)), alive(had), 0)
			had = append(had, weak.Make(&batch[0]))
		}
	}
	type large [100 << 10]byte
	first := func(dst large, _ []int) (large, error) { return dst, nil }
	allocates(t, "New", 1<<20, func() { must(New(numbers(1<<20), first, Options{Workers: 64, Prefetch: 16})) })
}

// TestStats compares every figure with that of a schedule worked out by hand.
// load is how long each sample takes, in turn; a sample of -1 fails. step is
// how long the loop takes for a batch. The time between loops does not count.
func TestStats(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	if runtime.GOMAXPROCS(0) != 8 {
		t.Skip("this platform has no threads, so the number of CPUs cannot be set")
	}
	const ms = time.Millisecond
	type d = []time.Duration
	slow := append(d{10 * ms, 10 * ms, 200 * ms}, slices.Repeat(d{10 * ms}, 9)...)
	bad := append(slices.Repeat(d{-1}, 5), slices.Repeat(d{50 * ms}, 15)...)
	ragged := make(d, 200)
	for i := range ragged {
		ragged[i] = 52*ms + time.Duration(below(100, 1, uint64(i)))*ms
	}
	for _, c := range []struct {
		name      string
		opts      Options
		epochs, n int
		load      d
		step      time.Duration
		want      string // how the line ends, with "blocked" for "with the next batch ready"
	}{
		// Batches are ready in pairs, at 100, 200, …; every other one is waited
		// for, for 40.
		{"loader", Options{BatchSize: 2, Workers: 2}, 1, 40, d{50 * ms}, 30 * ms,
			"waited 43 % of 1.06s, 0 % blocked; workers: 2, 94 % busy: the loader is the bottleneck, workers needed: 4"},
		{"many", Options{Workers: 1}, 1, 11, d{100 * ms}, 10 * ms,
			"waited 90 % of 1.11s, 0 % blocked; workers: 1, 99 % busy: the loader is the bottleneck, workers needed: 10, " +
				"if they wait rather than compute; to compute there are 8 CPUs"},
		{"training", Options{Workers: 4}, 1, 20, d{20 * ms}, 100 * ms,
			"waited 1 % of 2.02s, 0 % blocked; workers: 4, 5 % busy: the training is the bottleneck, workers needed: 1"},
		{"training alone", Options{}, 1, 20, d{8 * ms}, 100 * ms,
			"waited 7 % of 2.16s, 0 % blocked: the training is the bottleneck, workers needed: 0"},
		// From 50 to 210 the loop waits for batch 2, behind which 3 to 5 are
		// ready.
		{"slow batch", Options{Workers: 2}, 1, 12, slow, 20 * ms, "waited 41 % of 410ms, 39 % blocked; workers: 2, 38 % busy: " +
			"slow batches block the batches behind them, raise Prefetch or set Unordered"},
		{"bad samples", Options{BatchSize: 2, OnError: dropBad}, 1, 20, bad, 60 * ms, "10 batches, 15 samples (12/s), 5 dropped; " +
			"waited 62 % of 1.217s, 0 % blocked: the loader is the bottleneck, workers needed: 2"},
		// Batch 0 comes at 100, the others at 101, 102 and 103, all of them
		// before the loop has had batch 0 for 15.
		{"first batch slow for one worker", Options{Workers: 1}, 1, 4, d{100 * ms, ms, ms, ms}, 15 * ms,
			"waited 62 % of 160ms, 0 % blocked; workers: 1, 64 % busy: " +
				"a few batches are so slow that the loop waits for them while workers are idle"},
		{"two batches", Options{}, 1, 2, d{10 * ms}, 10*ms + 100*time.Microsecond,
			"waited 50 % of 40.2ms, 0 % blocked: loading and training take turns, a worker would load during training"},
		{"loops of one batch", Options{Workers: 1}, 11, 1, d{700 * time.Microsecond}, 61 * ms,
			"batches: 11, loops: 11: too few to tell, since training is timed between two batches of a loop"},
		// Each loop waits for its first batch, whatever Prefetch is.
		{"short loops", Options{Workers: 4}, 10, 5, d{10 * ms}, 10 * ms,
			"waited 17 % of 600ms, 0 % blocked; workers: 4, 21 % busy: the loader keeps up after the first batch of a loop; loops: 10"},
		// What was waited for in one loop has ended in the next.
		{"loops without training", Options{Workers: 2}, 50, 4, d{10 * ms}, 0,
			"waited 100 % of 1s, 0 % blocked; workers: 2, 100 % busy: the loader is the bottleneck, the loop takes no time of its own"},
		// 100 of each 25 are enough for 4 workers, and less than half of the
		// waiting is for a batch before others.
		{"ragged", Options{Workers: 4, Prefetch: 1}, 1, 200, ragged, 25 * ms, "waited 22 % of 6.397s, 8 % blocked; " +
			"workers: 4, 79 % busy: the loader keeps up on average but not always, raise Prefetch"},
		{"ragged, Prefetch 2", Options{Workers: 4, Prefetch: 2}, 1, 200, ragged, 25 * ms, "waited 5 % of 5.245s, " +
			"1 % blocked; workers: 4, 96 % busy: the training is the bottleneck, workers needed: 4"},
		{"ragged, five workers", Options{Workers: 5, Prefetch: 1}, 1, 200, ragged, 25 * ms, "waited 9 % of 5.523s, " +
			"4 % blocked; workers: 5, 73 % busy: the training is the bottleneck, workers needed: 4"},
	} {
		runRowInBubble(t, c.name, func(t *testing.T) {
			stats := new(Stats)
			c.opts.Trace = stats.Observe
			loader := newLoader(t, Func(c.n, func(_ context.Context, i int) (int, error) {
				d := c.load[i%len(c.load)]
				time.Sleep(d)
				return i, map[bool]error{true: errBad}[d < 0]
			}), c.opts)
			for epoch := range c.epochs {
				for range loader.Epoch(t.Context(), epoch) {
					time.Sleep(c.step)
				}
				time.Sleep(10 * time.Second) // an evaluation
			}
			t.Log(stats)
			got := strings.ReplaceAll(stats.String(), "with the next batch ready", "blocked")
			equal(t, "the end of the line", got[max(0, len(got)-len(c.want)):], c.want)
		})
	}
}

// Second reading: files, streams and shards; the Examples.

// # More helpers

// readAll writes down epoch 0 of a stream, as outcomes does.
func readAll[T any](t testing.TB, s Stream[T]) []string { return outcomes(s.Epoch(t.Context(), 0)) }

// resume writes down what a stream yields from a cursor on.
func resume[T any](t testing.TB, s Stream[T], from Cursor) []string {
	return outcomes(s.Run(t.Context(), &from))
}

// tree is a file system with folders at several depths.
func tree() fs.FS {
	files, names := fstest.MapFS{}, "a.txt b.png cat/1.png cat/2.png cat/old/0.png cat/.hidden dog/1.png dog/x/y/z.txt .git/config"
	for _, name := range strings.Fields(names) {
		files[name] = &fstest.MapFile{Data: []byte("in " + name)}
	}
	return files
}

// closedFS is a file system in which the files and one folder cannot be opened.
type closedFS struct {
	fs.FS
	folder string
}

func (c closedFS) Open(name string) (fs.File, error) {
	if info, err := c.Stat(name); err != nil || !info.IsDir() || name == c.folder {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return c.FS.Open(name)
}

func (c closedFS) Stat(name string) (fs.FileInfo, error) { return fs.Stat(c.FS, name) }

// ## Helpers for streams

func init() {
	checkAsStream = func(t *testing.T, l *DataLoader[[]int], epoch int) []string {
		return checkStream(t, StreamOf(l), epoch)
	}
	dyingStreams = func(t *testing.T, workers int, die func()) []error {
		get := func(_ context.Context, i int) (int, error) { die(); return i, nil }
		source := FromSeq(func(context.Context, int) iter.Seq2[int, error] { die(); return nil })
		return []error{
			ending(Map(counting(1), workers, get).Epoch(t.Context(), 0)),
			ending(Map(source, workers, quick).Epoch(t.Context(), 0)),
		}
	}
	runFromStream = func(ctx context.Context, w *world, e engine, slots []Item[int], body func(slot int) bool) {
		stream := Indices(Sequential(w.all)).Filter(func(int) bool { w.sent.Add(1); return true })
		readAhead(ctx, stream, Cursor{}, e, slots, body)
	}
}

// A feed is the stream 0, 1, …, n-1, plus 100 times the epoch, made of a
// sequence. It counts how the sequence is read.
type feed struct {
	n      int
	bad    []int                            // the items that fail
	before func(ctx context.Context, i int) // called before item i, and with n before the end; nil: nothing
	read   atomic.Int64                     // how many items were read
	left   atomic.Int64                     // how many sequences have ended, or were left
}

func (s *feed) stream() ints {
	return FromSeq(func(ctx context.Context, epoch int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			defer s.left.Add(1)
			for i := 0; ; i++ {
				if s.before != nil {
					s.before(ctx, i)
				}
				if i == s.n {
					return
				}
				s.read.Add(1)
				var err error
				if slices.Contains(s.bad, i) {
					err = fmt.Errorf("item %d is bad", i)
				}
				if !yield(100*epoch+i, err) {
					return
				}
			}
		}
	})
}

// counting is the stream of a source that nobody looks at.
func counting(n int, bad ...int) ints { return (&feed{n: n, bad: bad}).stream() }

// letters is the stream of the letters of s.
func letters(s string) Stream[string] {
	return Map(Indices(Sequential(len(s))), 0, func(_ context.Context, i int) (string, error) { return s[i : i+1], nil })
}

// head returns the first element of a batch.
func head(_ context.Context, b []int) (int, error) { return b[0], nil }

// double returns twice i, slowly, with some random noise. Every 17th number
// fails, with a value beside the error.
func double(ctx context.Context, i int) (int, error) {
	time.Sleep(time.Duration(Rand(ctx).IntN(1000)))
	if i%17 == 16 {
		return i, errBad
	}
	return 2*i + 10000*Rand(ctx).IntN(3), nil
}

type ints = Stream[int]

// cursors are the cursors of epoch 0 of a stream: the start, and the one after
// each item.
func cursors[T any](t *testing.T, s Stream[T]) []Cursor {
	t.Helper()
	all := []Cursor{{}}
	for _, item := range collect(t, s.Items(t.Context(), Cursor{})) {
		all = append(all, item.Next)
	}
	return all
}

// stages are all stages, made of a stream and, if they join streams, of another
// one. n varies their other arguments; there are n/4%4 workers. No stage leaves
// out an item because i%4 is 1.
var stages = []struct {
	name string
	of   func(s ints, n int, other func() ints) ints
}{
	{"Filter", func(s ints, n int, _ func() ints) ints { return s.Filter(func(i int) bool { return i%4 != n%2*2 }) }},
	{"Take", func(s ints, n int, _ func() ints) ints { return s.Take(n%20 + 1) }},
	{"Repeat", func(s ints, n int, _ func() ints) ints { return s.Repeat(n%3 + 1) }},
	{"Chain", func(s ints, _ int, other func() ints) ints { return Chain(s, other()) }},
	{"Zip", func(s ints, n int, other func() ints) ints { return Map(Zip(s, other()), n/4%4, add) }},
	{"Shuffle", func(s ints, n int, _ func() ints) ints { return s.Shuffle(n%6+1, uint64(n)) }},
	{"Mix", func(s ints, n int, other func() ints) ints {
		weights := [][]float64{nil, {1, float64(n%4) + .5}}[n/8%2]
		return Mix(MixOptions{Weights: weights, Seed: uint64(n), Stop: []Stop{StopAtFirst, StopAtLast}[n/4%2]}, s, other())
	}},
	{"Shard", func(s ints, n int, _ func() ints) ints { return s.Shard(Rank{n % 3, 3}, Tail(n/4%3)) }},
	{"OnError", func(s ints, n int, _ func() ints) ints {
		return s.OnError(func(e *SampleError) error { return []error{e, errBad}[(n+e.Pos)%2] })
	}},
	{"Batch", func(s ints, n int, _ func() ints) ints { return Unbatch(Batch(s, n%4+1, List[int])) }},
	{"Map", func(s ints, n int, _ func() ints) ints { return Map(s, n/4%4, double) }},
	{"Prefetch", func(s ints, n int, _ func() ints) ints { return s.Prefetch(n%5 + 1) }},
}

// add returns the sum of a pair.
func add(_ context.Context, p Pair[int, int]) (int, error) { return p.First + p.Second, nil }

// eachStage runs a test for the stream that each stage makes of s and n, in a
// bubble of testing/synctest.
func eachStage(t *testing.T, s ints, n int, test func(t *testing.T, s ints)) {
	t.Helper()
	for _, stage := range stages {
		runRowInBubble(t, fmt.Sprintf("%s, n %d", stage.name, n), func(t *testing.T) {
			test(t, stage.of(s, n, func() ints { return s.Shuffle(3, 3) }))
		})
	}
}

// checkStream puts an epoch of a stream through everything that a stream
// promises, and returns the epoch's outcomes. A failed item has no value, and
// is a position like any other. Positions grow. Every cursor resumes the
// stream, and never changes. Two iterations at once do not meet. An ended
// context is the last pair. Nothing leaves a goroutine.
func checkStream[T any](t *testing.T, s Stream[T], epoch int) (want []string) {
	t.Helper()
	want = []string{}
	inBubble(t, func(t *testing.T) {
		at := Cursor{Epoch: epoch}
		cursors, saved := []Cursor{at}, []string{at.String()}
		another, stop := iter.Pull2(s.Epoch(t.Context(), epoch))
		defer stop()
		for item, err := range s.Items(t.Context(), at) {
			failIf(t, err != nil, "after %d items: %v", len(want), err)
			if item.Err != nil {
				equal(t, "the value of a failed item", item.Value, *new(T))
				item.Err = itemError(item.Next, item.Err)
			}
			failIf(t, item.Next.Epoch != epoch || item.Next.Pos <= at.Pos,
				"item %d: next is epoch %d, pos %d, after pos %d", len(want), item.Next.Epoch, item.Next.Pos, at.Pos)
			at = item.Next
			cursors, saved = append(cursors, at), append(saved, at.String())
			now := outcomes(one(item.Value, item.Err))
			want = append(want, now...)
			value, err, _ := another()
			equal(t, "two at once", outcomes(one(value, err)), now)
		}
		_, _, more := another()
		equal(t, "another item", more, false)
		for k := 0; k < len(cursors); k += unlessShort(1, 3) {
			checkResume(t, s, cursors[k], want[k:], saved[k:])
			checkStop(t, s, epoch, k, want, false)
			equal(t, "a cursor some time later", cursors[k].String(), saved[k])
		}
	})
	return want
}

// checkResume resumes a stream at a cursor: in one run, in which another
// program may have written the cursor anew, and in many runs, each left after
// the same number of successes. A place has the saved cursor, whatever was
// resumed before.
func checkResume[T any](t *testing.T, s Stream[T], from Cursor, want, saved []string) {
	t.Helper()
	rewrite := strings.NewReplacer("ö", `\u00f6`, `":`, `" : `)
	for _, at := range []Cursor{from, fromJSON(t, rewrite.Replace(from.String()))} {
		if got := outcomes(s.Run(t.Context(), &at)); !slices.Equal(got, want) || at != (Cursor{Epoch: from.Epoch + 1}) {
			t.Fatalf("from %v, and then at %v:\n got %q\nwant %q", from, at, got, want)
		}
	}
	got, each := []string{}, 1+len(want)%3
	for at := from; at.Epoch == from.Epoch && len(got) <= len(want); at = throughJSON(t, at) {
		n := 0
		for value, err := range s.Run(t.Context(), &at) {
			if got = append(got, outcomes(one(value, err))...); err != nil {
				continue
			}
			equal(t, fmt.Sprintf("cursor %d from %v", len(got), from), at.String(), saved[min(len(got), len(want))])
			if n++; n == each {
				break
			}
		}
	}
	equal(t, fmt.Sprintf("from %v, left after each %d items and resumed", from, each), got, want)
}

// checkStop ends the context while the loop has item k, or before the first,
// possibly because of a *SampleError. The ended context is the last pair, and
// no *SampleError. What has not come comes after a resume. After the last item
// the epoch is complete; if not exact, it may be stopped then too: FromSeq
// cannot know whether its sequence has stopped early.
func checkStop[T any](t *testing.T, s Stream[T], epoch, k int, want []string, exact bool) {
	t.Helper()
	stopped := []error{errors.New("stopped"), fmt.Errorf("stopped: %w", &SampleError{Err: io.EOF})}[k%2]
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	at, n := Cursor{Epoch: epoch}, 0
	if k == 0 {
		cancel(stopped)
	}
	before := at
	var end error
	for value, err := range s.Run(ctx, &at) {
		if err != nil {
			equal(t, "the value beside an error", value, *new(T))
			equal(t, "the cursor at an error", at, before)
		}
		before = at
		if failed := (*SampleError)(nil); err != nil && !errors.As(err, &failed) {
			end = err
		} else if n++; n == k {
			time.Sleep(time.Duration(k/2%2) * time.Second) // workers read all they may, or not
			cancel(stopped)
		}
	}
	complete := end == nil && at == (Cursor{Epoch: epoch + 1})
	if n != k || !complete && !errors.Is(end, stopped) || complete != (k == len(want)) && (complete || exact) {
		t.Fatalf("stopped after %d of %d items: %d came, and then %v, at %v", k, len(want), n, end, at)
	}
	if end != nil { // the items that failed last come again
		rest := outcomes(s.Run(t.Context(), &at))
		equal(t, "what a stop has left", rest[max(0, len(rest)-len(want)+k):], want[k:])
	}
}

// of is the check of a stream, for a table of streams of different types.
func of[T any](s Stream[T]) func(*testing.T, int) []string {
	return func(t *testing.T, epoch int) []string { return checkStream(t, s, epoch) }
}

// failure is the first error in epoch 5 of a stream.
func failure[T any](t *testing.T, s Stream[T]) (err error) {
	for _, err = range s.Epoch(t.Context(), 5) {
		if err != nil {
			break
		}
	}
	return err
}

// shown is a run of a loader or a stream, in words.
func shown[T any](run func(context.Context, *Cursor) iter.Seq2[T, error]) func(*Cursor) []string {
	return func(at *Cursor) []string { return outcomes(run(context.Background(), at)) }
}

// ## Helpers for shards

// tarEntries returns an archive of entries: "name=content" is a file,
// "name>target" a hard link, "name@target" a symbolic link, and a name by
// itself a folder.
func tarEntries(entries ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := tar.Header{Typeflag: tar.TypeDir, Name: e, Mode: 0o444}
		content := ""
		if i := strings.IndexAny(e, "=>@"); i >= 0 {
			h.Typeflag = map[byte]byte{'=': tar.TypeReg, '>': tar.TypeLink, '@': tar.TypeSymlink}[e[i]]
			h.Name, h.Linkname = e[:i], e[i+1:]
		}
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
		}
		h.Size = int64(len(content))
		must(0, w.WriteHeader(&h))
		must(io.WriteString(w, content))
	}
	must(0, w.Close())
	return b.Bytes()
}

// digits returns a folder of testdata/digits.zip: "train", from 0/000.png to
// 9/054.png, or "test", from 0/000.png to 9/024.png.
func digits(folder string) fs.FS {
	data := must(os.ReadFile("testdata/digits.zip"))
	return must(fs.Sub(must(zip.NewReader(bytes.NewReader(data), int64(len(data)))), folder))
}

// scatterDigits writes the digits for training to shards, in random order,
// since a shard is read from front to back. A record has the fields png and
// cls.
func scatterDigits(pattern string) []string {
	shards, files := must(Expand(pattern)), must(Files(digits("train")))
	entries, order := make([][]string, len(shards)), Random(files.Len(), 7).Order(0)
	for pos := range files.Len() {
		file, s := must(files.Get(context.Background(), order(pos))), pos%len(shards)
		entries[s] = append(entries[s], fmt.Sprint(pos, ".cls=", path.Dir(file.Name)), fmt.Sprint(pos, ".png=", string(file.Data)))
	}
	for s, name := range shards {
		must(0, os.WriteFile(name, tarEntries(entries[s]...), 0o666))
	}
	return shards
}

// withBytes returns data with other bytes at an offset.
func withBytes(data []byte, at int, bytes string) []byte {
	return slices.Concat(data[:at], []byte(bytes), data[min(at+len(bytes), len(data)):])
}

// withHeader returns data with other bytes at an offset in the header at
// another, and its checksum corrected.
func withHeader(data []byte, header, at int, bytes string) []byte {
	data = withBytes(data, header+at, bytes)
	return withBytes(data, header+148, fmt.Sprintf("%06o\x00 ", sumHeader(data[header:header+tarBlock])))
}

// tarHeader returns a header of any type, and its data in whole blocks.
func tarHeader(kind, name, data string) []byte {
	b := make([]byte, roundToBlocks(int64(tarBlock+len(data))))
	size := fmt.Sprintf("%011o\x00", len(data))
	for at, field := range map[int]string{0: name, 100: "0000644\x00", 124: size, 257: posixMagic + "00", tarBlock: data} {
		copy(b[at:], field)
	}
	return withHeader(b, 0, 156, kind)
}

// paxHeader returns an extended header of PAX records.
func paxHeader(records ...string) []byte {
	var text string
	for _, r := range records {
		n := len(r) + 3
		for n != len(fmt.Sprintf("%d %s\n", n, r)) {
			n++
		}
		text += fmt.Sprintf("%d %s\n", n, r)
	}
	return tarHeader("x", "PaxHeaders.0/a", text)
}

// otherHeaders are archives of the same entries with headers that say the same
// in other ways: with PAX records, as Python writes them, and with long names
// of GNU tar. An archive that archive/tar cannot read, or that has an end
// marker only, is not changed.
func otherHeaders(data []byte) (all [][]byte) {
	for _, format := range []tar.Format{tar.FormatPAX, tar.FormatGNU} {
		var b bytes.Buffer
		r, w := tar.NewReader(bytes.NewReader(data)), tar.NewWriter(&b)
		h, err := r.Next()
		for ; err == nil; h, err = r.Next() {
			if format == tar.FormatGNU {
				b.Write(tarHeader("L", "././@LongLink", h.Name+"\x00"))
			}
			h.Format, h.ModTime, h.PAXRecords = format, time.Unix(1.7e9, 123456700), nil
			must(0, w.WriteHeader(h))
			must(io.Copy(w, r))
			must(0, w.Flush())
		}
		if must(0, w.Close()); err == io.EOF && b.Len() > 1024 {
			all = append(all, b.Bytes())
		}
	}
	return all
}

// gzipped compresses data.
func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must(w.Write(data))
	must(0, w.Close())
	return b.Bytes()
}

// isPacked reports whether data is compressed, with gzip, bzip2, xz or zstd.
func isPacked(data []byte) bool {
	return slices.Contains([]string{"\x1f\x8b", "BZ", "\xfd7", "\x28\xb5"}, string(data[:min(2, len(data))]))
}

// inMemory is an Opener of shards in memory.
func inMemory(shards map[string][]byte) Opener {
	return func(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
		data, ok := shards[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return io.NopCloser(bytes.NewReader(data[min(offset, int64(len(data))):])), nil
	}
}

// opening is an Opener that returns the same reader for every shard.
func opening(r io.Reader) Opener {
	c, ok := r.(io.ReadCloser)
	if !ok {
		c = io.NopCloser(r)
	}
	return func(context.Context, string, int64) (io.ReadCloser, error) { return c, nil }
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// breaksAfter is a reader that yields data, and then what fail does.
func breaksAfter(data []byte, fail func() error) io.Reader {
	return io.MultiReader(bytes.NewReader(data), readerFunc(func([]byte) (int, error) { return 0, fail() }))
}

// A countingFile is a file in memory, which can seek. It counts the bytes that
// are read.
type countingFile struct {
	*bytes.Reader
	read   int
	closed bool
}

func (f *countingFile) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	f.read += n
	return n, err
}

func (f *countingFile) Close() error {
	f.closed = true
	return nil
}

// brief writes a record as "key{field:content …}".
func brief(r Record) string {
	var files []string
	for _, f := range r.Files {
		content := string(f.Data)
		if len(content) > 40 {
			content = fmt.Sprintf("%d bytes #%x", len(content), crc32.ChecksumIEEE(f.Data))
		}
		files = append(files, f.Name+":"+content)
	}
	return r.Key + "{" + strings.Join(files, " ") + "}"
}

// briefRecord is a record in brief, of a key and a field and its content in
// turn.
func briefRecord(key string, files ...string) string {
	r := Record{Key: key}
	for file := range slices.Chunk(files, 2) {
		r.Files = append(r.Files, File{file[0], []byte(file[1])})
	}
	return brief(r)
}

// briefly is a stream of records in brief.
func briefly(s Stream[Record]) Stream[string] {
	return Map(s, 0, func(_ context.Context, r Record) (string, error) { return brief(r), nil })
}

// tarOf is a stream of shards in memory, named 0, 1, …, in brief.
func tarOf(opts TarOptions, shards ...[]byte) Stream[string] {
	all, names := map[string][]byte{}, []string{"0", "1", "2"}[:len(shards)]
	for i, data := range shards {
		all[names[i]] = data
	}
	opts.Open = inMemory(all)
	return briefly(must(Tar(names, opts)))
}

// tarFrom is a stream of shards that an Opener opens.
func tarFrom(open Opener, shards ...string) Stream[Record] {
	return must(Tar(shards, TarOptions{Open: open}))
}

// tarOutcomes reads the first epoch of shards through an Opener.
func tarOutcomes(t testing.TB, open Opener, shards ...string) []string {
	return readAll(t, briefly(tarFrom(open, shards...)))
}

// onDisk writes a shard into a folder of the test's.
func onDisk(t testing.TB, name string, data []byte) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	must(0, os.WriteFile(name, data, 0o666))
	return name
}

// readDataset reads all records of a data set in brief.
func readDataset(t testing.TB, data Dataset[Record]) []string {
	return readAll(t, briefly(Map(Indices(Sequential(data.Len())), 0, data.Get)))
}

// indexed reads all records of a shard by their index in brief, or is the error
// of OpenTar. Errors have the words of tarOf.
func indexed(t testing.TB, name string) (all []string) {
	t.Helper()
	if d, err := OpenTar(name); err != nil {
		all = []string{"error " + err.Error()}
	} else {
		defer d.Close()
		all = readDataset(t, d)
	}
	for i, got := range all {
		all[i] = strings.NewReplacer("error Map: ", "error ", quote(name), quote("0")).Replace(got)
	}
	return all
}

// same compares outcomes with those that are wanted, between semicolons. Of an
// error only what stands between dots is wanted, no secret, and nothing long.
func same(t testing.TB, what string, got []string, want string) {
	t.Helper()
	all := strings.Split(want, "; ")
	if want == "" {
		all = nil
	}
	failIf(t, len(got) != len(all), "%s:\n got %q\nwant %q", what, got, all)
	for i, g := range got {
		says, failed := strings.CutPrefix(all[i], "error ")
		if !failed || !strings.HasPrefix(g, "error") {
			equal(t, what, g, all[i])
			continue
		}
		saysAll(t, errors.New(g), strings.Split(says, " … ")...)
		tells := strings.Contains(g, "secret") || strings.Contains(g, "sec%")
		failIf(t, tells || len(g) > 2000, "%s tells a secret, or too much: %s", what, g)
	}
}

// checkShard checks what every reader makes of a shard, and returns what Tar
// yields, before the records of a shard after it, and what OpenTar yields. Tar
// yields the same of the shard compressed, and from each cursor. Every error of
// Tar is a TarError, and Rest is set if the cursor after it is that of the next
// shard. archive/tar finds the same entries.
func checkShard(t *testing.T, opts TarOptions, data []byte) (streamed, byIndex []string) {
	t.Helper()
	after := tarEntries("z.cls=4", "y.cls=5")
	stream := tarOf(opts, data, after)
	if streamed = readAll(t, stream); !testing.Short() {
		equal(t, "streamed", checkStream(t, stream, 0), streamed)
	}
	for item := range stream.Items(t.Context(), Cursor{}) {
		rest := strings.Contains(string(must(json.Marshal(item.Next))), `"shard":1`)
		if e := (*TarError)(nil); item.Err != nil && (!errors.As(item.Err, &e) || e.Shard != "0" || e.Rest != rest) {
			t.Errorf("no TarError, or Rest is not %t: %v", rest, item.Err)
		}
	}
	rest := max(0, len(streamed)-2)
	same(t, "the shard after it", streamed[rest:], "z{cls:4}; y{cls:5}")
	if !isPacked(data) {
		compareReaders(t, data)
		equal(t, "compressed", readAll(t, tarOf(opts, gzipped(data), after)), streamed)
	}
	return streamed[:rest], indexed(t, onDisk(t, "x.tar", data))
}

// checkIndexed checks that OpenTar has the records of Tar, or refuses a shard
// that is compressed or not read to its end.
func checkIndexed(t testing.TB, data []byte, streamed, byIndex []string) {
	t.Helper()
	if isPacked(data) || strings.Contains(fmt.Sprint(streamed), "not read further") {
		equal(t, "refused", len(byIndex) == 1 && strings.Contains(byIndex[0], "OpenTar: "), true)
	} else {
		equal(t, "by index", byIndex, streamed)
	}
}

// makeShard makes what a line of testdata/shards.txt says.
func makeShard(line string) (data []byte, opts TarOptions) {
	steps := strings.Split(line, "|")
	for i, step := range steps {
		steps[i] = must(strconv.Unquote(`"` + strings.TrimSpace(step) + `"`))
	}
	sound := "a.txt=first a.cls=1 b.txt=" + strings.Repeat("second", 200) + " b.cls=2 c.txt=third c.cls=3"
	large := "a.txt=" + strings.Repeat("x", 256<<10-3*tarBlock)
	data = tarEntries(strings.Fields(strings.NewReplacer("sound", sound, "large", large).Replace(steps[0]))...)
	for _, step := range steps[1:] {
		words := append(strings.SplitN(step, " ", 4), "", "", "")
		n, _ := strconv.Atoi(words[1])
		at, _ := strconv.Atoi(words[2])
		switch words[0] {
		case "cut":
			data = data[:n]
		case "zeros":
			data = append(data, make([]byte, n)...)
		case "twice":
			data = slices.Concat(data, data)
		case "set":
			data = withBytes(data, n, words[2])
		case "header":
			data = withHeader(data, n, at, words[3])
		case "bytes":
			data = []byte(step[len("bytes "):])
		case "max":
			opts.MaxRecord = int64(n)
		}
	}
	return data, opts
}

// tenShards returns ten shards of two records each, 0a, 0b, 1a, …
func tenShards() (names []string, shards map[string][]byte) {
	shards = map[string][]byte{}
	for i := range 10 {
		names = append(names, fmt.Sprintf("%d.tar", i))
		shards[names[i]] = tarEntries(fmt.Sprintf("%da.txt=", i), fmt.Sprintf("%db.txt=", i))
	}
	return names, shards
}

// # The Examples

// Examples are the documentation: what the reader comes for stands in the body.
// Inside the package New stands for dataloader.New.

// ## The loop

// An epoch has the same order each time, and the next epoch has another. There
// is nothing to reset.
func ExampleDataLoader_Epoch() {
	data := Slice[int]{0, 1, 2, 3, 4, 5}
	loader, err := New(data, List[int], Options{BatchSize: 6, Shuffle: true, Seed: 42})
	if err != nil {
		log.Fatal(err)
	}
	for _, epoch := range []int{0, 0, 1} {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("epoch", epoch, batch)
		}
	}
	// Output:
	// epoch 0 [5 4 0 2 3 1]
	// epoch 0 [5 4 0 2 3 1]
	// epoch 1 [1 2 0 4 3 5]
}

// The cursor is the position after the batch in hand, so the number of that
// batch follows from it.
func ExampleDataLoader_Run() {
	const batchSize = 2
	data := Slice[string]{"a", "b", "c", "d", "e"}
	loader, err := New(data, List[string], Options{BatchSize: batchSize})
	if err != nil {
		log.Fatal(err)
	}
	var at Cursor
	for batch, err := range loader.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("epoch", at.Epoch, "batch", (at.Pos-1)/batchSize, "of", loader.Len(), batch)
	}
	// Output:
	// epoch 0 batch 0 of 3 [a b]
	// epoch 0 batch 1 of 3 [c d]
	// epoch 0 batch 2 of 3 [e]
}

// Epoch starts over in each new loop, as PyTorch's DataLoader does. Run
// continues at its cursor, as an iterator does.
func ExampleStream_Run_restartOrContinue() {
	loader, err := New(Slice[string]{"a", "b", "c", "d"}, List[string], Options{})
	if err != nil {
		log.Fatal(err)
	}
	var at Cursor
	untilB := func(seq iter.Seq2[[]string, error]) {
		for batch, err := range seq {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(batch)
			if batch[0] == "b" {
				break
			}
		}
	}
	ctx := context.Background()
	untilB(loader.Epoch(ctx, 0))
	untilB(loader.Epoch(ctx, 0))
	fmt.Println(" starts over")
	untilB(loader.Run(ctx, &at))
	untilB(loader.Run(ctx, &at))
	fmt.Println(" continues; the next epoch is", at.Epoch)
	// Output:
	// [a][b][a][b] starts over
	// [a][b][c][d] continues; the next epoch is 1
}

// A batch that cannot be loaded is a *SampleError in its place, and the loop
// may skip it. Any other error is the last: the context has ended, or the
// cursor does not fit.
func ExampleSampleError() {
	data := Func(12, func(ctx context.Context, i int) (int, error) {
		if i == 5 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	loader, err := New(data, List[int], Options{BatchSize: 4, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	train := func(ctx context.Context) error {
		var at Cursor
		for batch, err := range loader.Run(ctx, &at) {
			var bad *SampleError
			if errors.As(err, &bad) {
				fmt.Println("skipped batch", bad.Batch,
					"because of sample", bad.Index, "with", bad.Err)
				continue
			}
			if err != nil {
				return err
			}
			fmt.Println(batch)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	fmt.Println(train(ctx))
	cancel()
	fmt.Println(train(ctx))
	// Output:
	// [0 1 2 3]
	// skipped batch 1 because of sample 5 with unexpected EOF
	// [8 9 10 11]
	// <nil>
	// context canceled
}

// ## Checkpoints and training

// The cursor of a pipeline. Batch and Prefetch pass the cursor of Shuffle on,
// so pos counts samples, not batches. What Prefetch has read ahead is not in
// the cursor. The fields are
//
//	epoch    the epoch that is being read
//	pos      items that have left Shuffle
//	by       the stage that made the cursor; another one refuses it
//	n        items that have left since source: here source.pos + n = pos
//	source   the place in the source from which a resume reads again; absent at the start of epoch 0
//	again    items that a resume reads again: here after.pos − source.pos
//	after    where the source stands after these: its pos, a digest of its cursor, and the first source of all
func ExampleCursor_stream() {
	shuffled := Indices(Random(40, 1)).Shuffle(4, 2)
	batches := Batch(shuffled, 2, List[int]).Prefetch(2)
	var at Cursor
	for _, err := range batches.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		if at.Pos == 20 {
			break
		}
	}
	text, err := json.MarshalIndent(at, "", "  ")
	fmt.Println(string(text), err)
	// Output:
	// {
	//   "epoch": 0,
	//   "pos": 20,
	//   "state": {
	//     "by": "Shuffle(4, seed 2), version 2",
	//     "n": 6,
	//     "source": {
	//       "epoch": 0,
	//       "pos": 14,
	//       "state": {
	//         "by": "Indices(Random(40, seed 1))"
	//       }
	//     },
	//     "again": 12,
	//     "after": {
	//       "pos": 26,
	//       "digest": "3930364e3ded63d2",
	//       "by": "Indices(Random(40, seed 1))"
	//     }
	//   }
	// } <nil>
}

// A cursor that was saved as JSON resumes the epoch in another process, with
// another number of workers and of ranks.
func ExampleCursor() {
	data := Func(24, func(ctx context.Context, i int) (int, error) { return i, nil })

	// load is such a process. It resumes a checkpoint, takes one step and
	// returns the next checkpoint.
	load := func(rank, ranks, batchSize int, saved []byte) []byte {
		loader, err := New(data, List[int], Options{
			BatchSize: batchSize, Workers: ranks, Rank: Rank{Index: rank, Count: ranks},
		})
		if err != nil {
			log.Fatal(err)
		}
		var at Cursor
		if err := json.Unmarshal(saved, &at); err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Run(context.Background(), &at) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("rank", rank, "of", ranks, batch)
			break
		}
		if saved, err = json.Marshal(at); err != nil {
			log.Fatal(err)
		}
		return saved
	}
	start := []byte(`{"epoch":0}`)
	saved := load(0, 2, 4, start)
	fmt.Println("all ranks' checkpoints are equal:", bytes.Equal(saved, load(1, 2, 4, start)))
	fmt.Println(string(saved))
	load(0, 1, 8, saved)  // 1 rank with batches of 8 resumes 2 with batches of 4,
	for rank := range 4 { // and so do 4 with batches of 2
		load(rank, 4, 2, saved)
	}
	// Output:
	// rank 0 of 2 [0 2 4 6]
	// rank 1 of 2 [1 3 5 7]
	// all ranks' checkpoints are equal: true
	// {"epoch":0,"pos":8,"state":{"by":"Sequential(24)"}}
	// rank 0 of 1 [8 9 10 11 12 13 14 15]
	// rank 0 of 4 [8 12]
	// rank 1 of 4 [9 13]
	// rank 2 of 4 [10 14]
	// rank 3 of 4 [11 15]
}

// An ordered is an order of data that have a name, which is part of its
// description. For a loader there is Options.DataVersion.
type ordered struct {
	Sampler
	version string // of the data: a date, or a hash of the ids
}

func (o ordered) String() string { return fmt.Sprint(o.Sampler, " of ", o.version) }

// A cursor that was saved with other data or other options is refused, and so
// is a damaged one. Here a row was replaced since: without a name for the data
// the resume would repeat rows, and leave others out. This program tries the
// cursor again, because a refusal may be due to a source that fails for a
// moment. Then it begins the epoch again. A *SampleError is asked for first:
// its cause may be a cursor that a loop in Get has refused. A truncated file
// fails before, in json.Unmarshal, with an error that is no ErrCursor. Copy the
// type ordered, too, which stands before this Example.
func ExampleErrCursor() {
	state := json.RawMessage(`{"by": "Indices(Sequential(3) of ids v1)"}`)
	at := Cursor{Epoch: 6, Pos: 2, State: state} // from a file
	rows := Indices(ordered{Sequential(3), "ids v2"})
	for refusals := 0; at.Epoch < 7; {
		for i, err := range rows.Run(context.Background(), &at) {
			var bad *SampleError
			if errors.As(err, &bad) {
				fmt.Println("skipped:", bad)
				continue
			}
			if errors.Is(err, ErrCursor) {
				fmt.Printf("%.81s…\n", err)
				if refusals++; refusals == 2 {
					at = Cursor{Epoch: max(0, at.Epoch)}
				}
				break
			}
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(i)
		}
	}
	// Output:
	// dataloader: refused cursor {epoch 6, pos 2}: it was made by Indices(Sequential(3)…
	// dataloader: refused cursor {epoch 6, pos 2}: it was made by Indices(Sequential(3)…
	// 0
	// 1
	// 2
}

// A checkpoint is what the next training process must know: the model, here a
// sum, and the cursor. Among ranks only rank 0 saves it. It is written to a
// file of its own and renamed, so that the name always stands for a whole
// checkpoint: of two processes the last one wins, and a full disk or a loss of
// power leaves the checkpoint before. A killed process may leave a file *.new.
// A file without a cursor is refused: it is another program's, and the training
// would begin anew and overwrite it. If your weights are written by
// encoding/gob, gob the cursor's JSON with them.
func Example_checkpoint() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "checkpoint.json")
	data := Slice[int]{1, 2, 3, 4, 5}
	loader, err := New(data, List[int], Options{BatchSize: 2, Shuffle: true, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}

	type checkpoint struct {
		Sum int
		At  Cursor
	}
	save := func(c checkpoint) error {
		data, err := json.Marshal(c)
		if err != nil {
			return err
		}
		file, err := os.CreateTemp(dir, filepath.Base(name)+".*.new")
		if err != nil {
			return err
		}
		defer os.Remove(file.Name()) // of no effect after Rename
		_, err = file.Write(data)
		err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close())
		if err == nil {
			err = os.Rename(file.Name(), name)
		}
		if folder, failed := os.Open(dir); failed == nil {
			folder.Sync() // so that a loss of power does not undo Rename, where the system can
			folder.Close()
		}
		return err
	}
	load := func() (c checkpoint, err error) {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return c, nil // the first process begins with the zero checkpoint
		}
		c.At.Epoch = -1
		if err == nil {
			err = json.Unmarshal(data, &c)
		}
		if err == nil && c.At.Epoch < 0 {
			err = errors.New("it has no cursor")
		}
		if err != nil {
			err = fmt.Errorf("checkpoint %s: %w", name, err)
		}
		return c, err
	}

	// train is one process. It is interrupted after a number of steps.
	train := func(steps int) error {
		c, err := load()
		if err != nil {
			return err
		}
		for c.At.Epoch < 2 {
			for batch, err := range loader.Run(context.Background(), &c.At) {
				if err != nil {
					return err
				}
				for _, x := range batch {
					c.Sum += x
				}
				if err := save(c); err != nil {
					return err
				}
				if steps--; steps == 0 {
					return errors.New("interrupted")
				}
			}
		}
		fmt.Println("the sum of two epochs:", c.Sum)
		return nil
	}
	fmt.Println(train(2))
	fmt.Println(train(-1))
	if err := os.WriteFile(name, []byte(`{"loss":1}`), 0o666); err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Unwrap(train(-1)))
	// Output:
	// interrupted
	// the sum of two epochs: 30
	// <nil>
	// it has no cursor
}

// Gradient accumulation: an optimizer step takes the gradients of several
// batches. The checkpoint changes after a whole step only, cursor and weights
// together, so a run that is interrupted within a step loads its batches again.
// Batches that are left at the end of an epoch make a smaller step: no step
// spans two epochs. The gradient is divided by the number of samples, not of
// batches, because the last batch may be smaller. If the loss has a term for
// each token, divide by the number of tokens that have one, because texts
// differ in length. On several ranks, sum gradients and numbers over the ranks
// first, and if the framework takes the mean over ranks, multiply by their
// number.
func Example_gradientAccumulation() {
	const accumulate = 2 // batches in a step
	data := Slice[float64]{1, 2, 3, 4, 5, 6, 7, 8, 9}
	loader, err := New(data, List[float64], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	var c struct { // the checkpoint, as in Example_checkpoint
		Weight float64
		At     Cursor
	}
	train := func(batches int) { // one process, which is interrupted after a number of batches
		at := c.At
		gradient, samples, k := 0.0, 0, 0 // of the k batches since the last step
		step := func() {
			if k > 0 {
				c.Weight -= gradient / float64(samples)
				fmt.Println("a step of", samples, "samples makes the weight", c.Weight)
			}
			c.At = at // save c here
			gradient, samples, k = 0, 0, 0
		}
		for at.Epoch < 1 {
			for batch, err := range loader.Run(context.Background(), &at) {
				if err != nil {
					log.Fatal(err)
				}
				for _, x := range batch {
					gradient += x // stands for the backward pass
				}
				samples += len(batch)
				if k++; k == accumulate {
					step()
				}
				if batches--; batches == 0 {
					return
				}
			}
			step() // the rest of the epoch
		}
	}
	train(3)
	fmt.Println("interrupted after 3 batches; the checkpoint is at", c.At.Pos)
	train(-1)
	// Output:
	// a step of 4 samples makes the weight -2.5
	// interrupted after 3 batches; the checkpoint is at 4
	// a step of 4 samples makes the weight -9
	// a step of 1 samples makes the weight -18
}

// An evaluation counts each sample once, on any number of ranks: UnevenTail
// neither repeats nor leaves out samples. Sums and numbers are added up over
// batches and ranks, and divided at the end: a mean of the batches' means gives
// samples of small batches more weight. A rank may have fewer batches than
// others, or none, so ranks must not exchange anything within the loop. Divide
// a loss of tokens by the number of tokens.
func Example_evaluation() {
	losses := Slice[float64]{1, 1, 1, 1, 1, 1, 1, 1, 8} // stands for samples and a model
	const ranks = 2
	// evaluate is what a rank does. means is what not to do.
	evaluate := func(rank int, tail Tail) (sum float64, count int, means []float64) {
		loader, err := New(losses, List[float64], Options{
			BatchSize: 4, Rank: Rank{Index: rank, Count: ranks}, Tail: tail,
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err) // otherwise the mean is of fewer samples
			}
			before := sum
			for _, loss := range batch {
				sum += loss
			}
			count += len(batch)
			means = append(means, (sum-before)/float64(len(batch)))
		}
		return sum, count, means
	}
	for _, tail := range []Tail{UnevenTail, PadTail} {
		sum, count := 0.0, 0
		var means []float64
		for rank := range ranks { // for which an all-reduce stands in a training
			s, n, m := evaluate(rank, tail)
			sum += s
			count += n
			means = append(means, m...)
		}
		mean := sum / float64(count)
		fmt.Printf("the mean of %d samples: %.2f; of the batches: %.2f\n", count, mean, means)
	}
	// Output:
	// the mean of 9 samples: 1.78; of the batches: [1.00 8.00 1.00]
	// the mean of 10 samples: 1.70; of the batches: [1.00 8.00 1.00 1.00]
}

// The batch size and the length of the sequences change at given places of the
// training: another loader goes on with the same cursor, at any step, because
// the order is one of samples. A sample is a window of the longest sequence,
// which load divides into rows, so the order does not depend on the length. The
// stage follows from the cursor, so a resume needs nothing else; here each step
// is a process of its own. A place counts the samples of all ranks.
func ExampleDataLoader_Run_schedule() {
	const text = "abcdefghijklmnopqrstuvwxyz012345"
	const longest = 8
	const n = len(text) / longest // windows
	stages := []struct{ from, batchSize, length int }{{0, 1, 2}, {2, 2, 4}, {6, 2, 8}}
	stageOf := func(at Cursor) (k int) {
		for k+1 < len(stages) && at.Epoch*n+at.Pos >= stages[k+1].from {
			k++
		}
		return k
	}
	train := func(at *Cursor, steps int) {
		for at.Epoch < 3 {
			k := stageOf(*at)
			load := func(_ context.Context, rows []string, indices []int) ([]string, error) {
				rows = rows[:0]
				for _, i := range indices {
					window := text[i*longest : (i+1)*longest]
					for j := 0; j < longest; j += stages[k].length {
						rows = append(rows, window[j:j+stages[k].length])
					}
				}
				return rows, nil
			}
			loader, err := NewBatchFunc(n, load, Options{
				BatchSize: stages[k].batchSize, Shuffle: true, Seed: 1, Workers: 2,
			})
			if err != nil {
				log.Fatal(err)
			}
			for rows, err := range loader.Run(context.Background(), at) {
				if err != nil {
					log.Fatal(err)
				}
				fmt.Println("epoch", at.Epoch, rows)
				if steps--; steps == 0 {
					return
				}
				if stageOf(*at) != k {
					break
				}
			}
		}
	}
	var at Cursor
	for at.Epoch < 3 {
		train(&at, 1)
		saved, err1 := json.Marshal(at)
		at = Cursor{}
		err2 := json.Unmarshal(saved, &at)
		if err := errors.Join(err1, err2); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// epoch 0 [yz 01 23 45]
	// epoch 0 [qr st uv wx]
	// epoch 0 [ijkl mnop abcd efgh]
	// epoch 1 [abcd efgh ijkl mnop]
	// epoch 1 [qrstuvwx yz012345]
	// epoch 2 [ijklmnop qrstuvwx]
	// epoch 2 [yz012345 abcdefgh]
}

// Weights that follow the loss: a loader for each round of the training, which
// is an epoch here. The checkpoint has the weights of the round that has begun,
// what was measured in it, and the cursor, which only a loader with the same
// weights accepts. So a training that is interrupted within a round makes the
// same weights as one that is not. On several ranks gather what was measured
// from all of them before a checkpoint, and save it once. For the weights of
// data sets let mixture of ExampleSampler_mixture choose by them.
func ExampleWeighted_byLoss() {
	const n, rounds = 8, 4
	data := Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
	type checkpoint struct {
		Weights, Losses [n]float64 // of the round of At; of the last time that a sample was seen
		At              Cursor
	}
	train := func(saved []byte, steps int) []byte {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			log.Fatal(err)
		}
		for c.At.Epoch < rounds && steps != 0 {
			if c.At.State == nil { // the round has not begun
				for i, loss := range c.Losses {
					c.Weights[i] = 0.1 + loss // each sample has a chance
				}
			}
			sampler, err := Weighted(c.Weights[:], 3*n, true, 1)
			if err != nil {
				log.Fatal(err)
			}
			loader, err := New(data, List[int], Options{BatchSize: 4, Sampler: sampler, Workers: 2})
			if err != nil {
				log.Fatal(err)
			}
			for batch, err := range loader.Run(context.Background(), &c.At) {
				if err != nil {
					log.Fatal(err)
				}
				for _, i := range batch {
					c.Losses[i] = float64(i) / 8 // stands for the training
				}
				if steps--; steps == 0 {
					break
				}
			}
		}
		saved, err := json.Marshal(c)
		if err != nil {
			log.Fatal(err)
		}
		return saved
	}
	whole := train([]byte("{}"), -1)
	part := []byte("{}")
	for range rounds * 6 {
		part = train(part, 1) // a process for each step
	}
	same := bytes.Equal(train(part, -1), whole)
	fmt.Println("the same after an interruption at every step:", same)
	var c checkpoint
	if err := json.Unmarshal(whole, &c); err != nil {
		log.Fatal(err)
	}
	fmt.Println("weights", c.Weights)
	// Output:
	// the same after an interruption at every step: true
	// weights [0.1 0.225 0.35 0.475 0.6 0.725 0.85 0.975]
}

// Data that grow between epochs: each epoch has a loader of its own, for the
// samples that are there when it begins. The checkpoint has their number N, so
// that an epoch that has begun is finished with a Subset of the first N, which
// Func makes, and the next one has all. A loader of any other number refuses
// the cursor. Add samples at the end only: index i stays the same.
func ExampleFunc_growing() {
	data := Slice[string]{"a", "b", "c", "d"}
	type checkpoint struct {
		N  int // the samples in the epoch of At
		At Cursor
	}
	epoch := func(c checkpoint, steps int) checkpoint {
		if c.At.State == nil { // it has not begun
			c.N = data.Len()
		}
		loader, err := New(Func(c.N, data.Get), List[string], Options{
			BatchSize: 2, Shuffle: true, Seed: 1, Workers: 2,
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Run(context.Background(), &c.At) {
			if err != nil {
				fmt.Println(strings.Split(err.Error(), ";")[0])
				return c
			}
			fmt.Println(c.N, "samples:", batch)
			if steps--; steps == 0 {
				break
			}
		}
		return c
	}
	c := epoch(checkpoint{}, 1)
	data = append(data, "e", "f")
	epoch(checkpoint{N: data.Len(), At: c.At}, -1) // an ErrCursor
	c = epoch(c, -1)
	epoch(c, -1)
	// Output:
	// 4 samples: [d c]
	// dataloader: refused cursor {epoch 0, pos 2}: it was made by Random(4, seed 1), this is Random(6, seed 1)
	// 4 samples: [b a]
	// 6 samples: [a d]
	// 6 samples: [f c]
	// 6 samples: [e b]
}

// SIGTERM, Ctrl-C, preemption: a checkpoint even if a Get hangs. The loop would
// hear of its context's end only when that Get has returned. So the loop has a
// context that does not end, and the function that saves ends the program. It
// waits for a step that has begun, and no other begins, because it keeps the
// mutex. Between two steps Run may have moved at already: c has a copy that
// fits the weights. Save under the same mutex elsewhere, too. A second signal
// kills at once. Do not defer stop: it ends ctx, so that a training that has
// come to its end would save and exit as well.
func ExampleDataLoader_Run_signal() {
	hanging := make(chan bool)
	data := Func(6, func(ctx context.Context, i int) (int, error) {
		if i == 4 {
			<-hanging // a network file system
		}
		return i, nil
	})
	loader, err := New(data, List[int], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	exit := func(int) { close(hanging) } // in a program os.Exit

	var mu sync.Mutex // held while weights and cursor do not fit each other
	var c struct {
		Sum int // the weights
		At  Cursor
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // the next signal kills
		mu.Lock()
		defer mu.Unlock() // not reached in a program
		saved, err := json.Marshal(c)
		fmt.Println(string(saved), err) // Example_checkpoint writes a file
		exit(1)
	})
	at := c.At
	for batch, err := range loader.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		mu.Lock()
		for _, x := range batch {
			c.Sum += x
		}
		if at.Pos == 4 {
			stop() // stands for the signal
		}
		c.At = at
		mu.Unlock()
	}
	// Output: {"Sum":6,"At":{"epoch":0,"pos":4,"state":{"by":"Sequential(6)"}}} <nil>
}

// SIGTERM and Ctrl-C, if each Get returns when its context ends: the loop ends
// with the context's cause, between two steps.
func ExampleDataLoader_Run_interrupted() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal kills
	var at Cursor
	sum := 0
	for batch, err := range loader.Run(ctx, &at) {
		if err != nil {
			fmt.Println("saved:", sum, at, "because:", err)
			return
		}
		for _, x := range batch {
			sum += x
		}
		if at.Pos == 4 {
			stop() // stands for the signal
		}
	}
	// Output: saved: 6 {"epoch":0,"pos":4,"state":{"by":"Sequential(6)"}} because: context canceled
}

// A model learns digits, and its training is interrupted in the middle of an
// epoch. train, called again with another number of workers, gets only the
// checkpoint's JSON: the images come in the same order, are shifted at random
// by the same pixels, and make the same weights. go test -v shows them being
// made.
//
// The data side is decode, shift, open and the loop in train: change these.
// digitModel stands for your model. (digits, with must, reads the images here.)
func Example_training() {
	// A digit is an image of the shape [16 16], from 0 for paper to 1 for ink,
	// and the digit that it shows.
	type digit = Pair[Tensor[float32], int]

	// decode makes a digit of a file.
	decode := func(fsys fs.FS, name string, label int) (digit, error) {
		file, err := fsys.Open(name)
		if err != nil {
			return digit{}, err
		}
		defer file.Close()
		img, err := png.Decode(file)
		if err != nil {
			return digit{}, fmt.Errorf("%s: %w", name, err)
		}
		gray, ok := img.(*image.Gray)
		if !ok {
			return digit{}, fmt.Errorf("%s: %T, want %T", name, img, gray)
		}
		pixels := make([]float32, len(gray.Pix))
		for i, p := range gray.Pix {
			pixels[i] = float32(p) / 255
		}
		shape := []int{gray.Rect.Dy(), gray.Rect.Dx()}
		return digit{First: Tensor[float32]{Data: pixels, Shape: shape}, Second: label}, nil
	}

	// shift moves an image at random by up to a pixel in each direction. What
	// leaves it on one side enters on the other.
	shift := func(ctx context.Context, d digit) (digit, error) {
		rng := Rand(ctx)
		width, pixels := d.First.Shape[1], d.First.Data
		k := (rng.IntN(3)-1)*width + rng.IntN(3) - 1
		k = (k + len(pixels)) % len(pixels)
		// A copy, because the Cache keeps pixels.
		d.First.Data = slices.Concat(pixels[k:], pixels[:k])
		return d, nil
	}

	// open returns the digits in a folder. Each is decoded once, by a worker.
	open := func(folder string) Dataset[digit] {
		fsys := digits(folder) // or os.DirFS(folder)
		// The classes are "0" to "9", so their numbers are the digits.
		files, _, err := Folder(fsys, "*/*.png")
		if err != nil {
			log.Fatal(err)
		}
		get := func(_ context.Context, file Pair[string, int]) (digit, error) {
			return decode(fsys, file.First, file.Second)
		}
		return Cache(Transform(files, get))
	}

	test := open("test")

	// recognized counts the test images that a model recognizes.
	recognized := func(m *digitModel) (n int) {
		loader, err := New(test, CollatePair(Stack[float32], List[int]), Options{
			BatchSize: 32, Workers: 2, Tail: UnevenTail, // each image once, on any number of ranks
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			for i, label := range batch.Second {
				p := m.predict(batch.First.Data[i*16*16 : (i+1)*16*16])
				if p[label] == slices.Max(p[:]) {
					n++
				}
			}
			loader.Recycle(batch)
		}
		return n
	}

	// A checkpoint is all that train must know of what was trained before.
	type checkpoint struct {
		Model      digitModel
		At         Cursor
		Loss       [30]float64 // of each epoch, the sum over the images
		Recognized [30]int     // after each epoch
	}

	// train resumes a checkpoint, runs until epoch 30 or until it is
	// interrupted after a number of batches, and returns the next checkpoint.
	train := func(saved []byte, workers, batches int) []byte {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			log.Fatal(err)
		}
		data := Transform(open("train"), shift)
		loader, err := New(data, CollatePair(Stack[float32], List[int]), Options{
			BatchSize: 32, Shuffle: true, Seed: 1, Workers: workers,
		})
		if err != nil {
			log.Fatal(err)
		}
		for c.At.Epoch < 30 && batches != 0 {
			epoch := c.At.Epoch
			for batch, err := range loader.Run(context.Background(), &c.At) {
				if err != nil {
					log.Fatal(err)
				}
				c.Loss[epoch] += c.Model.learn(batch.First, batch.Second)
				loader.Recycle(batch)
				if batches--; batches == 0 {
					break
				}
			}
			c.Recognized[epoch] = recognized(&c.Model)
		}
		saved, err = json.Marshal(c)
		if err != nil {
			log.Fatal(err)
		}
		return saved
	}

	whole := train([]byte("{}"), 2, -1) // never interrupted
	half := train([]byte("{}"), 2, 260) // interrupted in epoch 14, after 8 of 18 batches
	rest := train(half, 3, -1)          // resumes there
	same := bytes.Equal(rest, whole)
	fmt.Println("the same weights as without the interruption:", same)
	var before, after checkpoint
	err := errors.Join(json.Unmarshal(half, &before), json.Unmarshal(rest, &after))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("more than 9 of 10 test images recognized:", after.Recognized[29] > 225)
	if !testing.Verbose() {
		return
	}

	// What follows only shows the training, on standard error. A loss has two
	// decimals, because machines that fuse multiplication and addition differ
	// in the last ones.
	show := log.New(os.Stderr, "", 0).Printf
	show("A model learns to read digits from 550 images, loaded by 2 workers. 250 others test it.")
	show("epoch  mean loss  test images recognized, " +
		"after 1, 2, 4, 8, 16 and 30 epochs, numbered from 0")
	for epoch, n := range after.Recognized {
		switch epoch {
		case 0, 1, 3, 7, 15, 29:
			bar := strings.Repeat("#", n/4)
			show("%5d  %9.2f  %3d %s", epoch, after.Loss[epoch]/550, n, bar)
		case before.At.Epoch:
			show("Interrupted in epoch %d, after %d of 18 batches. "+
				"The checkpoint has the weights and this cursor:\n%v",
				epoch, before.At.Pos/32, before.At)
			show("Resumed from the checkpoint, with 3 workers:")
		}
	}
	show("The weights are the same as without the interruption, bit for bit: %t", same)
	show("Five of the test images, and what the model says they are:")
	// Two rows of pixels in a line: the upper one, the lower one.
	blocks := [2][2]string{{" ", "▄"}, {"▀", "█"}}
	var lines [9]string
	for i := 4; i < test.Len(); i += 50 {
		d, err := test.Get(context.Background(), i)
		if err != nil {
			log.Fatal(err)
		}
		for y := range 8 {
			lines[y] += "    "
			for x := range 16 {
				upper, lower := d.First.Data[2*y*16+x], d.First.Data[(2*y+1)*16+x]
				lines[y] += blocks[int(upper+0.5)][int(lower+0.5)]
			}
		}
		p := after.Model.predict(d.First.Data)
		says := slices.Index(p[:], slices.Max(p[:]))
		text := fmt.Sprintf("%d, %.0f %% sure", says, 100*p[says])
		if says != d.Second {
			text = fmt.Sprintf("%d, but it is a %d", says, d.Second)
		}
		lines[8] += fmt.Sprintf("    %-16s", text)
	}
	show("%s", strings.Join(lines[:], "\n"))
	// Output:
	// the same weights as without the interruption: true
	// more than 9 of 10 test images recognized: true
}

// A digitModel is a softmax regression: a weight for each digit and pixel.
type digitModel [10][16 * 16]float64

// predict returns the probability of each digit.
func (m *digitModel) predict(pixels []float32) (p [10]float64) {
	sum := 0.0
	for d := range p {
		for j, x := range pixels {
			p[d] += m[d][j] * float64(x)
		}
		p[d] = math.Exp(p[d])
		sum += p[d]
	}
	for d := range p {
		p[d] /= sum
	}
	return p
}

// learn takes a step down the gradient of the cross-entropy for each image of a
// batch, and returns the sum of the losses.
func (m *digitModel) learn(images Tensor[float32], labels []int) (loss float64) {
	for i, label := range labels {
		pixels := images.Data[i*16*16 : (i+1)*16*16]
		p := m.predict(pixels)
		loss -= math.Log(p[label])
		p[label]--
		for d := range p {
			for j, x := range pixels {
				m[d][j] -= 0.01 * p[d] * float64(x)
			}
		}
	}
	return loss
}

// ## dataset.go: what the samples are

// squares is the data set of the points (i, i²) for 0 <= i < n.
type squares struct{ n int }

func (s squares) Len() int { return s.n }

func (s squares) Get(ctx context.Context, i int) (Tensor[float32], error) {
	x := float32(i)
	return Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}}, nil
}

// A data set of your own is a type with two methods. Put in your own samples.
// Get must be safe for concurrent use, because workers call it at the same
// time. If nothing but Get needs the type, Func makes the data set of a
// function. Here it is
//
//	type squares struct{ n int } // the points (i, i²) for 0 <= i < n
//
//	func (s squares) Len() int { return s.n }
//
//	func (s squares) Get(ctx context.Context, i int) (Tensor[float32], error) {
//		x := float32(i)
//		return Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}}, nil
//	}
func Example_datasetOfYourOwn() {
	var data Dataset[Tensor[float32]] = squares{n: 5}
	loader, err := New(data, Stack[float32], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Shape, batch.Data)
	}
	// Output:
	// [2 2] [0 0 1 1]
	// [2 2] [2 4 3 9]
	// [1 2] [4 16]
}

// checkDataset in dataloader_test.go tests a data set of your own, in a test
// file in this folder. It uses contents and writeContents. Here Get reads every
// sample into the same buffer, so all samples of a batch would be the last one.
func ExampleDataset() {
	file := strings.NewReader("abcdef")
	buffer := make([]byte, 2)
	reused := Func(3, func(ctx context.Context, i int) ([]byte, error) {
		_, err := file.ReadAt(buffer, 2*int64(i))
		return buffer, err
	})
	fmt.Println(checkDataset(reused))
	fresh := Func(3, func(ctx context.Context, i int) ([]byte, error) {
		buffer := make([]byte, 2)
		_, err := file.ReadAt(buffer, 2*int64(i))
		return buffer, err
	})
	fmt.Println(checkDataset(fresh))
	// Output:
	// sample 0 has changed while others were fetched: Get reuses memory
	// <nil>
}

// Files reads the files of any file system, here one in memory. Transform
// decodes each as it is fetched.
func ExampleFiles() {
	fsys := fstest.MapFS{
		"a.txt":     {Data: []byte("one")},
		"b/c.txt":   {Data: []byte("two")},
		"b/d.jpg":   {Data: []byte("not text")},
		"b/e/f.txt": {Data: []byte("three")},
	}
	files, err := Files(fsys, "**/*.txt")
	if err != nil {
		log.Fatal(err)
	}
	words := Transform(files, func(ctx context.Context, f File) (string, error) {
		return f.Name + ": " + strings.ToUpper(string(f.Data)), nil
	})
	loader, err := New(words, List[string], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [a.txt: ONE b/c.txt: TWO]
	// [b/e/f.txt: THREE]
}

// Folder lists a tree with a folder for each class. A sample is a file's name
// and its label, so weights that draw each class equally often need no file.
// Transform reads the files.
func ExampleFolder() {
	fsys := fstest.MapFS{
		"cat/1.txt":     {Data: []byte("meow")},
		"cat/Thumbs.db": {},
		"dog/1.txt":     {Data: []byte("woof")},
		"dog/old/2.txt": {Data: []byte("growl")},
		"dog/old/3.txt": {Data: []byte("bark")},
	}
	samples, classes, err := Folder(fsys, "**/*.txt")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(classes, samples)

	counts := make([]float64, len(classes))
	for _, s := range samples {
		counts[s.Second]++
	}
	var weights []float64
	for _, s := range samples {
		weights = append(weights, 1/counts[s.Second])
	}
	balanced, err := Weighted(weights, len(weights), true, 1)
	if err != nil {
		log.Fatal(err)
	}
	texts := Transform(samples, func(_ context.Context, s Pair[string, int]) (string, error) {
		text, err := fs.ReadFile(fsys, s.First)
		return fmt.Sprintf("%s: %s", classes[s.Second], text), err
	})
	loader, err := New(texts, List[string], Options{BatchSize: 4, Sampler: balanced})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q\n", batch)
	}
	// Output:
	// [cat dog] [{cat/1.txt 0} {dog/1.txt 1} {dog/old/2.txt 1} {dog/old/3.txt 1}]
	// ["cat: meow" "dog: bark" "cat: meow" "cat: meow"]
}

// Rows are the samples of an arena loader: the features of all samples are one
// array, and a batch is a copy of some of its rows. Data without labels needs
// no Pair.
func ExampleRows() {
	features := Tensor[float32]{Data: []float32{0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, Shape: []int{5, 2}}
	data, err := Rows(features)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("size", batch.Shape[0], "shape", batch.Shape,
			"dimensions", len(batch.Shape), batch.Data)
	}
	// Output:
	// size 2 shape [2 2] dimensions 2 [0 0 1 1]
	// size 2 shape [2 2] dimensions 2 [2 2 3 3]
	// size 1 shape [1 2] dimensions 2 [4 4]
}

// Pairs joins features and labels, which are two arrays. Their numbers of
// samples must be equal.
func ExamplePairs() {
	features, err := Rows(Tensor[float32]{Data: []float32{0, 0, 1, 1, 2, 2}, Shape: []int{3, 2}})
	if err != nil {
		log.Fatal(err)
	}
	labels, err := Rows(Tensor[int64]{Data: []int64{7, 8, 9}, Shape: []int{3}})
	if err != nil {
		log.Fatal(err)
	}
	data, err := Pairs(features, labels)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(data, CollatePair(Stack[float32], Stack[int64]), Options{BatchSize: 3})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.First.Shape, batch.First.Data, batch.Second.Shape, batch.Second.Data)
	}
	_, err = Pairs(features, Slice[int]{1, 2})
	fmt.Println(err)
	// Output:
	// [3 2] [0 0 1 1 2 2] [3] [7 8 9]
	// dataloader: Pairs: the first data set has 3 samples, the second 2; they must be equal
}

// Rand draws the same numbers for augmentation with any number of workers.
func ExampleRand() {
	data := Func(4, func(ctx context.Context, i int) (string, error) {
		flip := Rand(ctx).IntN(2) == 1
		angle := Rand(WithSeed(ctx, 2)).IntN(10) // from a second generator
		onWorker := Worker(ctx) >= 0
		const text = "image %d flip %t angle %d on a worker %t"
		return fmt.Sprintf(text, i, flip, angle, onWorker), nil
	})
	for _, workers := range []int{0, 3} {
		loader, err := New(data, List[string], Options{Seed: 7, Workers: workers})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(batch[0])
		}
	}
	// Output:
	// image 0 flip true angle 8 on a worker false
	// image 1 flip true angle 0 on a worker false
	// image 2 flip false angle 3 on a worker false
	// image 3 flip false angle 5 on a worker false
	// image 0 flip true angle 8 on a worker true
	// image 1 flip true angle 0 on a worker true
	// image 2 flip false angle 3 on a worker true
	// image 3 flip false angle 5 on a worker true
}

// Cache keeps each sample, so later epochs call nothing.
func ExampleCache() {
	calls := 0
	remote := Func(2, func(ctx context.Context, i int) (string, error) {
		calls++
		return fmt.Sprint("sample ", i), nil
	})
	loader, err := New(Cache(remote), List[string], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for epoch := range 3 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("epoch", epoch, batch, "after", calls, "calls")
		}
	}
	// Output:
	// epoch 0 [sample 0 sample 1] after 2 calls
	// epoch 1 [sample 0 sample 1] after 2 calls
	// epoch 2 [sample 0 sample 1] after 2 calls
}

// Split deals a data set out at random, with the numbers of torch's
// random_split. Subset takes the samples with given indices. Concat puts data
// sets one after the other.
func ExampleSplit() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	parts, err := Split(data, 1, 7, 3)
	if err != nil {
		log.Fatal(err)
	}
	few, err := Subset(data, []int{9, 0})
	if err != nil {
		log.Fatal(err)
	}
	for _, part := range []Dataset[int]{parts[0], parts[1], Concat(few, parts[1])} {
		loader, err := New(part, List[int], Options{BatchSize: 10})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(batch)
		}
	}
	// Output:
	// [5 6 1 2 0 8 9]
	// [3 7 4]
	// [9 0 3 7 4]
}

// ## sampler.go: in which order they come, and to whom

// A sampler is a function of the epoch and the position. OrderFunc makes a
// sampler of any order that you compute.
func ExampleSampler() {
	weighted, err := Weighted([]float64{0, 1, 0, 3}, 8, true, 1)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range []Sampler{
		Sequential(5),
		Random(5, 1),
		RandomWithReplacement(5, 8, 1),
		weighted,
		Resize(Random(5, 1), 8),
		OrderFunc(3, func(epoch int) []int { return []int{epoch, 1, 4} }),
	} {
		order := s.Order(0)
		for pos := range s.Len() {
			fmt.Print(order(pos), " ")
		}
		fmt.Println(s)
	}
	// Output:
	// 0 1 2 3 4 Sequential(5)
	// 2 1 0 4 3 Random(5, seed 1)
	// 0 3 0 4 3 2 0 0 RandomWithReplacement(8 of 5, seed 1)
	// 3 3 3 1 3 1 3 3 Weighted(8 of 4, weights #7af97336fcf7129f, replace true, seed 1)
	// 2 1 0 4 3 1 3 0 Resize(Random(5, seed 1), 8)
	// 0 1 4 OrderFunc(3)
}

// TorchRandom gives each rank the samples of DistributedSampler, so that Go and
// Python jobs can share an epoch.
func ExampleTorchRandom() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for rank := range 3 {
		loader, err := New(data, List[int], Options{
			BatchSize: 4, Sampler: TorchRandom(10, 0), Rank: Rank{Index: rank, Count: 3},
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("rank", rank, batch)
		}
	}
	// Output:
	// rank 0 [4 5 0 2]
	// rank 1 [1 3 8 4]
	// rank 2 [7 9 6 1]
}

// A fewClasses is a batch sampler: each batch has a group of samples of each of
// perBatch classes. A pass gives every class one turn, except for the classes
// that are left over, which are others in each pass.
type fewClasses struct {
	classes          [][]int        // the indices of each class
	groups           []BatchSampler // of positions in a class, one or more
	perBatch, passes int            // passes in an epoch
}

func (f fewClasses) Len() int { return f.passes * (len(f.classes) / f.perBatch) }

func (f fewClasses) String() string {
	return fmt.Sprintf("fewClasses(%d of %d, passes %d, %v)",
		f.perBatch, len(f.classes), f.passes, f.groups[0])
}

func (f fewClasses) Batches(epoch int) func(batch int) []int {
	batches := len(f.classes) / f.perBatch // in a pass
	return func(batch int) (indices []int) {
		pass := epoch*f.passes + batch/batches
		turn := Random(len(f.classes), 1).Order(pass)
		for t := range f.perBatch {
			c := turn(batch%batches*f.perBatch + t)
			n := f.groups[c].Len()
			for _, pos := range f.groups[c].Batches(pass / n)(pass % n) {
				indices = append(indices, f.classes[c][pos])
			}
		}
		return indices
	}
}

// A batch sampler of your own is a type with two methods, and may build on
// Batches. Here each batch has two classes with two samples each, as losses
// that compare samples need it, and two ranks have a batch each. String names
// what makes the order, so that a cursor of another order is refused. Copy the
// type fewClasses, too, which stands before this Example.
func ExampleBatches() {
	data := Slice[string]{
		"cat 0", "dog 1", "cat 2", "dog 3", "cow 4", "cat 5", "cow 6", "dog 7", "cat 8", "dog 9",
	}
	cats, dogs, cows := []int{0, 2, 5, 8}, []int{1, 3, 7, 9}, []int{4, 6}
	sampler := fewClasses{classes: [][]int{cats, dogs, cows}, perBatch: 2, passes: 4}
	for c, class := range sampler.classes {
		group := Batches(Random(len(class), uint64(c)), 2, true) // two samples each
		sampler.groups = append(sampler.groups, group)
	}
	for rank := range 2 {
		loader, err := New(data, List[string], Options{
			BatchSampler: sampler, Rank: Rank{Index: rank, Count: 2},
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("rank %d %q\n", rank, batch)
		}
	}
	// Output:
	// rank 0 ["cat 5" "cat 2" "dog 9" "dog 7"]
	// rank 0 ["cat 0" "cat 8" "cow 6" "cow 4"]
	// rank 1 ["cow 4" "cow 6" "cat 8" "cat 0"]
	// rank 1 ["dog 7" "dog 9" "cat 2" "cat 5"]
}

// A oneKind is a batch sampler whose batches are of one kind each.
type oneKind struct {
	kinds [][]int // the indices of each kind
	size  int     // of a batch; the last of a kind may be smaller
	seed  uint64
}

func (o oneKind) batches(kind int) BatchSampler {
	return Batches(Random(len(o.kinds[kind]), o.seed+1+uint64(kind)), o.size, false)
}

func (o oneKind) Len() (n int) {
	for kind := range o.kinds {
		n += o.batches(kind).Len()
	}
	return n
}

func (o oneKind) String() string {
	sum := crc32.ChecksumIEEE(fmt.Append(nil, o.kinds))
	return fmt.Sprintf("oneKind(#%x, size %d, seed %d)", sum, o.size, o.seed)
}

func (o oneKind) Batches(epoch int) func(k int) []int {
	var all [][2]int // a kind, and the number of a batch of it
	var batches []func(k int) []int
	for kind := range o.kinds {
		for k := range o.batches(kind).Len() {
			all = append(all, [2]int{kind, k})
		}
		batches = append(batches, o.batches(kind).Batches(epoch))
	}
	order := Random(len(all), o.seed).Order(epoch)
	return func(k int) (indices []int) {
		b := all[order(k)]
		for _, pos := range batches[b[0]](b[1]) {
			indices = append(indices, o.kinds[b[0]][pos])
		}
		return indices
	}
}

// Batches of one kind: all samples of a batch have the same source, or the same
// shape, which Stack needs. Batches of all kinds come in random order, and each
// sample once an epoch, those of rare kinds, too. Put in what tells the kinds
// apart. The order resumes at any batch, on any number of ranks. In a step two
// ranks may have different kinds. Copy the type oneKind, too, which stands
// before this Example.
func ExampleBatches_oneKind() {
	images := strings.Fields("wide tall wide wide tall wide square wide tall") // or their shapes
	byName := map[string][]int{}
	for i, kind := range images {
		byName[kind] = append(byName[kind], i)
	}
	sampler := oneKind{size: 2, seed: 1}
	for _, kind := range slices.Sorted(maps.Keys(byName)) { // in the same order in each process
		sampler.kinds = append(sampler.kinds, byName[kind])
	}
	for _, opts := range []Options{
		{BatchSize: 2, Shuffle: true},
		{BatchSampler: sampler},
	} {
		loader, err := New(Slice[string](images), List[string], opts)
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(batch)
		}
		fmt.Println()
	}
	// Output:
	// [wide wide][wide tall][tall wide][square tall][wide]
	// [wide wide][tall][wide wide][wide][tall tall][square]
}

// A repeated is a sampler that draws each sample of another one several times
// in a row.
type repeated struct {
	Sampler
	times int
}

func (r repeated) Len() int { return r.Sampler.Len() * r.times }

func (r repeated) String() string { return fmt.Sprint(r.Sampler, ", each ", r.times, " times") }

func (r repeated) Order(epoch int) func(pos int) int {
	order := r.Sampler.Order(epoch)
	return func(pos int) int { return order(pos / r.times) }
}

// Each sample several times in a batch, as repeated augmentation and groups of
// answers to one question need it. Rand differs from position to position, so
// each time has other random numbers. A BatchSampler deals out whole batches,
// so a group stays on one rank; Options.Sampler would deal it out to several.
// Copy the type repeated, too, which stands before this Example.
func ExampleSampler_repeated() {
	data := Func(4, func(ctx context.Context, i int) (string, error) {
		return fmt.Sprintf("%c%d", 'a'+i, Rand(ctx).IntN(100)), nil // augment
	})
	const times, groups = 3, 2 // samples in a group, groups in a batch
	sampler := repeated{Random(data.Len(), 1), times}
	for rank := range 2 {
		loader, err := New(data, List[string], Options{
			BatchSampler: Batches(sampler, times*groups, false), Rank: Rank{Index: rank, Count: 2},
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("rank", rank, batch)
		}
	}
	// Output:
	// rank 0 [d39 d46 d3 c35 c72 c55]
	// rank 1 [b40 b73 b89 a39 a39 a83]
}

// Buckets makes batches of sequences of similar length, for Pad to fill. A
// padded batch here takes at most 12 runes.
func ExampleBuckets() {
	var sentences Slice[[]rune]
	var lengths []int
	for _, s := range []string{"hello", "I", "go", "world", "a", "of", "loaders"} {
		sentences = append(sentences, []rune(s))
		lengths = append(lengths, len([]rune(s)))
	}
	var sampler BatchSampler
	sampler, err := Buckets(lengths, 12, 1)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(sentences, Pad('.'), Options{BatchSampler: sampler})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		var ragged Padded[rune] = batch
		fmt.Printf("%v %v %q\n", ragged.Shape, ragged.Lengths, string(ragged.Data))
	}
	// Output:
	// [1 7] [7] "loaders"
	// [2 5] [5 5] "worldhello"
	// [2 2] [2 2] "goof"
	// [2 1] [1 1] "aI"
}

// A sameWidth is a batch sampler whose batches of a step have similar widths.
type sameWidth struct {
	BatchSampler // of Buckets
	lengths      []int
	ranks        int
}

func (s sameWidth) String() string { return fmt.Sprint(s.BatchSampler, " on ", s.ranks, " ranks") }

func (s sameWidth) Batches(epoch int) func(k int) []int {
	batch := s.BatchSampler.Batches(epoch)
	order, widths := make([]int, s.Len()), make([]int, s.Len())
	for k := range order {
		order[k] = k
		for _, i := range batch(k) {
			widths[k] = max(widths[k], s.lengths[i])
		}
	}
	steps := s.Len() / s.ranks // in each epoch other batches are left over
	byWidth := func(a, b int) int { return widths[a] - widths[b] }
	slices.SortStableFunc(order[:steps*s.ranks], byWidth)
	step := Random(steps, 1).Order(epoch)
	return func(k int) []int {
		if k < steps*s.ranks {
			k = step(k/s.ranks)*s.ranks + k%s.ranks
		}
		return batch(order[k])
	}
}

// In each step all ranks wait for the one with the longest sequences. Shard
// gives rank r batch step×ranks + r, and the batches of Buckets come in random
// order. This batch sampler sorts them by width, divides them into steps, and
// shuffles the steps. Batches that are left over come last; with DropTail they
// are left out. The order depends on the number of ranks. String names that
// number, so a cursor in the middle of an epoch resumes only as many ranks.
// Copy the type sameWidth, too, which stands before this Example.
func ExampleBuckets_ranks() {
	const ranks = 3
	var lengths []int // of the texts, from 4 to 108 runes
	for i := range 80 {
		lengths = append(lengths, 4+i*i/60)
	}
	texts := Func(len(lengths), func(_ context.Context, i int) ([]rune, error) {
		return make([]rune, lengths[i]), nil
	})
	buckets, err := Buckets(lengths, 240, 1)
	if err != nil {
		log.Fatal(err)
	}
	for _, sampler := range []BatchSampler{buckets, sameWidth{buckets, lengths, ranks}} {
		widths := make([][ranks]int, (sampler.Len()+ranks-1)/ranks)
		for rank := range ranks {
			loader, err := New(texts, Pad('.'), Options{
				BatchSampler: sampler, Rank: Rank{Index: rank, Count: ranks},
			})
			if err != nil {
				log.Fatal(err)
			}
			step := 0
			for batch, err := range loader.Epoch(context.Background(), 0) {
				if err != nil {
					log.Fatal(err)
				}
				widths[step][rank] = batch.Shape[1]
				step++
			}
		}
		fmt.Println(widths) // of each rank in step 0, in step 1, …
	}
	// Output:
	// [[56 4 62] [18 24 83] [102 11 70] [21 95 108] [6 5 97] [15 28 78] [64 7 49] [42 13 85] [74 88 32] [37 9 56]]
	// [[24 28 32] [15 18 21] [62 64 70] [97 102 108] [7 11 13] [85 88 95] [74 78 83] [42 49 56] [4 5 6] [37 9 24]]
}

// An evenWork is a batch sampler that deals each batch of another one out to
// ranks, so that the batches of a step cost nearly the same.
type evenWork struct {
	BatchSampler           // of batches for all ranks together
	cost         []float64 // of each sample
	ranks        int
}

func (e evenWork) Len() int { return e.BatchSampler.Len() * e.ranks }

func (e evenWork) String() string { return fmt.Sprint(e.BatchSampler, " on ", e.ranks, " ranks") }

func (e evenWork) Batches(epoch int) func(k int) []int {
	step := e.BatchSampler.Batches(epoch)
	return func(k int) []int {
		indices := slices.Clone(step(k / e.ranks))
		dearest := func(a, b int) int { return cmp.Compare(e.cost[b], e.cost[a]) }
		slices.SortStableFunc(indices, dearest)
		batches, costs := make([][]int, e.ranks), make([]float64, e.ranks)
		most := (len(indices) + e.ranks - 1) / e.ranks
		for _, i := range indices {
			to := -1 // the cheapest batch with room
			for r, batch := range batches {
				if len(batch) < most && (to < 0 || costs[r] < costs[to]) {
					to = r
				}
			}
			batches[to] = append(batches[to], i)
			costs[to] += e.cost[i]
		}
		return batches[k%e.ranks]
	}
}

// In each step all ranks wait for the one with the most work. The samples of a
// step stay those of a random order, here, and are dealt out to the ranks by
// cost: the dearest first, each to the cheapest rank that has room. All ranks
// have equally many samples, so a mean over ranks stays right. A text of L
// tokens costs a transformer L + L²/c; measure c. What is left is mostly the
// longest text alone. Without the limit of samples a step takes up to 3 % less,
// and the method of Karmarkar and Karp gains 0.3 % more in 25 times as long.
// For texts that are padded see ExampleBuckets_ranks. Batches of the global
// order should be full, hence true. The cursor resumes the same number of
// ranks. Copy the type evenWork, too, which stands before this Example.
func ExampleBatches_evenWork() {
	const ranks, size, n = 8, 16, 4096
	cost := make([]float64, n)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range cost {
		length := math.Exp(6 + rng.NormFloat64()) // 660 tokens on average, and few are long
		cost[i] = length + length*length/4096
	}
	texts := Slice[float64](cost) // stands for the texts
	random := Random(n, 1)
	for _, opts := range []Options{
		{Sampler: random, BatchSize: size},
		{BatchSampler: evenWork{Batches(random, ranks*size, true), cost, ranks}},
	} {
		const steps = n / ranks / size
		var slowest, sum [steps]float64
		for rank := range ranks {
			opts.Rank = Rank{Index: rank, Count: ranks}
			loader, err := New(texts, List[float64], opts)
			if err != nil {
				log.Fatal(err)
			}
			step := 0
			for batch, err := range loader.Epoch(context.Background(), 0) {
				if err != nil {
					log.Fatal(err)
				}
				takes := 0.0
				for _, cost := range batch {
					takes += cost
				}
				slowest[step] = max(slowest[step], takes)
				sum[step] += takes / ranks
				step++
			}
		}
		ratio := 0.0
		for step := range steps {
			ratio += slowest[step] / sum[step] / steps
		}
		fmt.Printf("the slowest rank takes %.2f times the mean\n", ratio)
	}
	// Output:
	// the slowest rank takes 1.89 times the mean
	// the slowest rank takes 1.21 times the mean
}

// Frameworks that compile a graph for each shape of a batch need few shapes:
// GoMLX by default has room for 32 and then fails, others compile for minutes.
// Pad alone makes nearly as many as there are batches, and Buckets one for each
// number of rows and width. Here lengths are rounded up to a power of two for
// Buckets, so that a bucket has one width, and a Collate around Pad fills each
// batch up to that width and to as many rows as the budget allows. Rows without
// a text have the length 0: mask them, and divide by what is not masked. Steps
// of half or a quarter of a power of two make more shapes, with less padding.
func ExamplePad_fewShapes() {
	const budget, pad = 1 << 14, 0 // tokens in a batch
	roundUp := func(length int) int { return max(16, 1<<bits.Len(uint(length-1))) }
	fill := func(dst Padded[int32], texts [][]int32) (Padded[int32], error) {
		width := 0
		for _, text := range texts {
			width = max(width, roundUp(len(text)))
		}
		rows := make([][]int32, budget/width)
		copy(rows, texts)
		rows[0] = slices.Repeat([]int32{pad}, width) // Pad pads to the longest
		b, err := Pad(int32(pad))(dst, rows)
		if err == nil {
			b.Lengths[0] = copy(b.Data, texts[0])
		}
		return b, err
	}

	const n = 20_000
	lengths, rounded := make([]int, n), make([]int, n)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range lengths {
		lengths[i] = min(8192, 1+int(math.Exp(5+rng.NormFloat64())))
		rounded[i] = roundUp(lengths[i])
	}
	texts := Func(n, func(_ context.Context, i int) ([]int32, error) {
		return make([]int32, lengths[i]), nil
	})
	buckets, err1 := Buckets(lengths, budget, 1)
	few, err2 := Buckets(rounded, budget, 1)
	if err := errors.Join(err1, err2); err != nil {
		log.Fatal(err)
	}
	show := func(name string, opts Options, collate Collate[[]int32, Padded[int32]]) {
		loader, err := New(texts, collate, opts)
		if err != nil {
			log.Fatal(err)
		}
		shapes := map[[2]int]bool{}
		batches, tokens, places, last := 0, 0, 0, ""
		for b, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			shapes[[2]int(b.Shape)] = true
			if len(shapes) == 33 && last == "" {
				last = fmt.Sprint(", the 33rd in batch ", batches)
			}
			batches++
			places += len(b.Data)
			for _, length := range b.Lengths {
				tokens += length
			}
			loader.Recycle(b)
		}
		fmt.Printf("%s: %d batches, %d %% full, of %d shapes%s\n",
			name, batches, 100*tokens/places, len(shapes), last)
	}
	show("Batches of 32", Options{BatchSize: 32, Shuffle: true}, Pad(int32(pad)))
	show("Buckets", Options{BatchSampler: buckets}, Pad(int32(pad)))
	show("Buckets of rounded lengths", Options{BatchSampler: few}, fill)
	// Output:
	// Batches of 32: 625 batches, 18 % full, of 528 shapes, the 33rd in batch 32
	// Buckets: 359 batches, 94 % full, of 194 shapes, the 33rd in batch 40
	// Buckets of rounded lengths: 436 batches, 68 % full, of 10 shapes
}

// RankFromEnv reads the rank that torchrun, mpirun, srun or a Kubernetes
// indexed Job sets in the environment. Rank 0's cursor resumes all ranks if
// they step together; without an all-reduce save each rank's cursor, and resume
// all from the smallest. Without a launcher Count is 0, by which nothing can be
// divided. Consecutive processes that share a replica of the model must load
// the same batches, so they are one rank here.
func ExampleRankFromEnv() {
	// In case srun has started this test: WORLD_SIZE must not be below it.
	os.Unsetenv("SLURM_STEP_NUM_TASKS")
	defer os.Unsetenv("RANK")
	defer os.Unsetenv("WORLD_SIZE")

	data := Slice[string]{"a", "b", "c", "d", "e", "f", "g", "h"}
	const global = 4 // the samples in a step of all ranks
	train := func(perReplica int) {
		rank, err := RankFromEnv()
		if err != nil {
			log.Fatal(err)
		}
		processes := max(1, rank.Count)
		if processes%perReplica != 0 {
			log.Fatalf("%d processes make no replicas of %d", processes, perReplica)
		}
		fmt.Print("process ", rank.Index)
		rank = Rank{Index: rank.Index / perReplica, Count: processes / perReplica}
		fmt.Print(" is rank ", rank.Index, " of ", rank.Count, ":")
		loader, err := New(data, List[string], Options{BatchSize: global / rank.Count, Rank: rank})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(" ", batch)
		}
		fmt.Println()
	}
	for index := range 4 { // four processes, two of which share a replica
		os.Setenv("RANK", fmt.Sprint(index)) // as torchrun does
		os.Setenv("WORLD_SIZE", "4")
		train(2)
	}
	// Output:
	// process 0 is rank 0 of 2: [a c] [e g]
	// process 1 is rank 0 of 2: [a c] [e g]
	// process 2 is rank 1 of 2: [b d] [f h]
	// process 3 is rank 1 of 2: [b d] [f h]
}

// Tail says how four ranks share an epoch of ten samples. PadTail repeats the
// first samples and DropTail leaves out the last, so that all ranks take the
// same number of steps: train with one of them. UnevenTail counts every sample
// once: evaluate with it.
func ExampleTail() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	names := map[Tail]string{PadTail: "pad", DropTail: "drop", UnevenTail: "uneven"}
	for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
		var steps [][]int
		for rank := range 4 {
			loader, err := New(data, List[int], Options{
				BatchSize: 3, Rank: Rank{Index: rank, Count: 4}, Tail: tail,
			})
			if err != nil {
				log.Fatal(err)
			}
			for batch, err := range loader.Epoch(context.Background(), 0) {
				if err != nil {
					log.Fatal(err)
				}
				steps = append(steps, batch)
			}
		}
		fmt.Println(names[tail], steps)
	}
	// Output:
	// pad [[0 4 8] [1 5 9] [2 6 0] [3 7 1]]
	// drop [[0 4] [1 5] [2 6] [3 7]]
	// uneven [[0 4 8] [1 5 9] [2 6] [3 7]]
}

// ## batch.go: what shape a batch has

// A Collate of your own makes batches of any type, here sums.
func ExampleCollate() {
	var sum Collate[int, int] = func(_ int, samples []int) (int, error) {
		total := 0
		for _, s := range samples {
			total += s
		}
		return total, nil
	}
	loader, err := New(Slice[int]{1, 2, 3, 4, 5, 6}, sum, Options{BatchSize: 3})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// 6
	// 15
}

// Frameworks take the Data and the Shape of a Tensor:
//
//	GoMLX            tensors.FromFlatDataAndDimensions(batch.Data, batch.Shape...)
//	Gorgonia         tensor.New(tensor.WithShape(batch.Shape...), tensor.WithBacking(batch.Data))
//	onnxruntime_go   ort.NewTensor(ort.NewShape(shape...), batch.Data), with the shape as int64
//
// The model here is a function of the same arguments. Some frameworks copy Data
// and others do not, so recycle a batch when its tensor has been used.
func ExampleTensor() {
	model := func(data []float32, shape ...int64) {
		fmt.Println(shape, data)
	}
	data := Slice[Tensor[float32]]{
		{Data: []float32{1, 2, 3, 4}, Shape: []int{2, 2}},
		{Data: []float32{5, 6, 7, 8}, Shape: []int{2, 2}},
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		var shape []int64
		for _, n := range batch.Shape {
			shape = append(shape, int64(n))
		}
		model(batch.Data, shape...)
		loader.Recycle(batch) // the model is done with it
	}
	// Output: [2 2 2] [1 2 3 4 5 6 7 8]
}

// A panic in a worker is the error of its batch. The error is one line, as in
// "panic: ouch (decode.go:12)"; the stack is beside it. A loop that skips every
// *SampleError would skip the panic, too. This one prints the stack, and ends.
func ExamplePanicError() {
	data := Func(3, func(ctx context.Context, i int) (string, error) {
		if i == 0 {
			return "", io.ErrUnexpectedEOF
		}
		return []string{"a"}[i], nil // panics for sample 1
	})
	loader, err := New(data, List[string], Options{Workers: 1})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		var bad *SampleError
		var bug *PanicError
		if errors.As(err, &bug) { // asked first, because a panic is a *SampleError as well
			fmt.Println(bug.Value)
			report := fmt.Sprintf("%v\n\n%s", err, bug.Stack) // for the log
			fmt.Println("says where:", strings.Contains(report, "ExamplePanicError"))
			return
		}
		if errors.As(err, &bad) {
			fmt.Println("skipped:", err)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// skipped: dataloader: epoch 0, batch 0, sample 0: unexpected EOF
	// runtime error: index out of range [1] with length 1
	// says where: true
}

// ## dataloader.go: all of it together

// A DataLoader has the type of its batches only. A function that takes one
// works with data sets of all types.
func ExampleDataLoader() {
	evaluate := func(loader *DataLoader[[]int]) (sum int, err error) {
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				return 0, err
			}
			for _, v := range batch {
				sum += v
			}
		}
		return sum, nil
	}
	loader, err := New(Slice[int]{1, 2, 3, 4}, List[int], Options{BatchSize: 3})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(evaluate(loader))
	// Output: 10 <nil>
}

// Batch loads a batch by its number. It disturbs no training loop, so an
// evaluation may use it in the middle of one.
func ExampleDataLoader_Batch() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		last, err := loader.Batch(ctx, 0, loader.Len()-1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("train", batch, "evaluate", last)
	}
	// Output:
	// train [0 1] evaluate [4 5]
	// train [2 3] evaluate [4 5]
	// train [4 5] evaluate [4 5]
}

// Which samples has step k? A loader of the numbers 0 … n-1 with the Options of
// the training, Shard and Tail included, says it and loads nothing. Its cursors
// are those of the training, so At lets the training skip steps.
func ExampleDataLoader_Batch_whichSamples() {
	opts := Options{BatchSize: 3, Shuffle: true, Seed: 1, Rank: Rank{Index: 1, Count: 2}}
	const n = 20 // the data set's Len
	numbers := Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
	which, err := New(numbers, List[int], opts)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	step := 5 // its loss was no number
	indices, err := which.Batch(ctx, step/which.Len(), step%which.Len())
	fmt.Println("step", step, "of rank", opts.Rank.Index, "has", indices, err)
	at := which.At(0, step+1) // skips it
	for indices, err := range which.Run(ctx, &at) {
		fmt.Println("then", indices, err)
	}
	// Output:
	// step 5 of rank 1 has [19 12 0] <nil>
	// then [16 17 6] <nil>
	// then [4] <nil>
}

// Recycle gives a batch's memory back after the step, as popping an arena does.
// One piece of memory serves all batches.
func ExampleDataLoader_Recycle() {
	data, err := Rows(Tensor[float32]{Data: make([]float32, 1000*784), Shape: []int{1000, 784}})
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 50})
	if err != nil {
		log.Fatal(err)
	}
	memory := map[*float32]bool{}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		memory[&batch.Data[0]] = true
		loader.Recycle(batch)
	}
	fmt.Println(loader.Len(), "batches in", len(memory), "place")
	// Output: 20 batches in 1 place
}

// OnError drops bad samples from their batches, here two at most. A third one
// fails its batch, and the body ends the loop. A body that skips each
// SampleError would go on. The budget is not in the cursor: a resume begins
// with a new one.
func ExampleOptions_onError() {
	data := Func(12, func(ctx context.Context, i int) (int, error) {
		if i%4 == 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	budget := 2
	drop := func(bad *SampleError) error {
		if budget--; budget < 0 {
			return bad
		}
		fmt.Println("dropped sample", bad.Index)
		return nil
	}
	loader, err := New(data, List[int], Options{BatchSize: 4, Workers: 2, OnError: drop})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	// Output:
	// dropped sample 3
	// [0 1 2]
	// dropped sample 7
	// [4 5 6]
	// dataloader: epoch 0, batch 2, sample 11: unexpected EOF
}

// If OnError drops all samples of a batch, the batch of this rank fails, and a
// loop that left the step out would let the other ranks wait for ever. So the
// rank takes part in the step, with weight zero. Here the samples are losses,
// and an all-reduce adds up their sums and weights.
func ExampleOptions_onErrorRanks() {
	data := Func(8, func(ctx context.Context, i int) (float64, error) {
		if i == 4 || i == 6 { // the second batch of rank 0
			return 0, io.ErrUnexpectedEOF
		}
		return float64(i), nil
	})
	drop := func(bad *SampleError) error { return nil } // count it, and have a budget
	var sums, weights [2]float64                        // of each step
	for rank := range 2 {
		loader, err := New(data, List[float64], Options{
			BatchSize: 2, Rank: Rank{Index: rank, Count: 2}, OnError: drop,
		})
		if err != nil {
			log.Fatal(err)
		}
		step := 0
		for batch, err := range loader.Epoch(context.Background(), 0) {
			var bad *SampleError
			if err != nil && !errors.As(err, &bad) {
				log.Fatal(err)
			}
			for _, loss := range batch { // the zero batch has none
				sums[step] += loss
			}
			weights[step] += float64(len(batch))
			fmt.Println("rank", rank, "step", step, batch)
			step++
		}
	}
	for step, sum := range sums {
		fmt.Println("step", step, "mean", sum/weights[step], "of", weights[step])
	}
	// Output:
	// rank 0 step 0 [0 2]
	// rank 0 step 1 []
	// rank 1 step 0 [1 3]
	// rank 1 step 1 [5 7]
	// step 0 mean 1.5 of 4
	// step 1 mean 6 of 2
}

// Trace sees every batch: who loaded it, when, and how long the loop waited for
// it.
func ExampleTiming() {
	var waited time.Duration
	trace := func(t Timing) {
		inTime := !t.Done.Before(t.Start)
		fmt.Println("batch", t.Batch, "worker", t.Worker,
			"samples", t.Samples, "dropped", t.Dropped, "in time", inTime)
		waited += t.Wait
	}
	loader, err := New(Slice[int]{0, 1, 2, 3, 4}, List[int], Options{BatchSize: 2, Trace: trace})
	if err != nil {
		log.Fatal(err)
	}
	start := time.Now()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	fmt.Println("waited no longer than the epoch took:", waited <= time.Since(start))
	// Output:
	// batch 0 worker -1 samples 2 dropped 0 in time true
	// [0 1]
	// batch 1 worker -1 samples 2 dropped 0 in time true
	// [2 3]
	// batch 2 worker -1 samples 1 dropped 0 in time true
	// [4]
	// waited no longer than the epoch took: true
}

// Stats says where the time goes. Loading takes five times as long as training
// here, so five workers would keep up.
func ExampleStats() {
	data := Func(100, func(ctx context.Context, i int) (int, error) {
		time.Sleep(500 * time.Microsecond) // load
		return i, nil
	})
	stats := new(Stats)
	loader, err := New(data, List[int], Options{BatchSize: 10, Workers: 1, Trace: stats.Observe})
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		time.Sleep(time.Millisecond) // train
	}
	// Here "10 batches, 100 samples (1600/s), …: the loader is the bottleneck,
	// workers needed: 5".
	line := stats.String()
	fmt.Println(line[:strings.Index(line, " (")])
	// Output: 10 batches, 100 samples
}

// What would a perfect loader gain? The same training with a handful of batches
// that stay in memory says it. They must not be recycled.
func ExampleStats_perfectLoader() {
	var clock time.Duration
	data := Func(100, func(ctx context.Context, i int) (int, error) {
		clock += 3 * time.Millisecond // load
		return i, nil
	})
	loader, err := New(data, List[int], Options{BatchSize: 5})
	if err != nil {
		log.Fatal(err)
	}
	train := func(batches iter.Seq2[[]int, error]) time.Duration {
		begin := clock // in a program time.Now()
		for _, err := range batches {
			if err != nil {
				log.Fatal(err)
			}
			clock += 10 * time.Millisecond // train
		}
		return clock - begin // in a program time.Since(begin)
	}
	var kept [4][]int
	for k := range kept {
		if kept[k], err = loader.Batch(context.Background(), 0, k); err != nil {
			log.Fatal(err)
		}
	}
	perfect := func(yield func([]int, error) bool) {
		for k := range loader.Len() {
			if !yield(kept[k%len(kept)], nil) {
				return
			}
		}
	}
	fmt.Println("now", train(loader.Epoch(context.Background(), 0)), "at best", train(perfect))
	// Output: now 500ms at best 200ms
}

// A picture of your own run: Trace writes events for ui.perfetto.dev or
// chrome://tracing, which show what each worker loads when, and when the loop
// waits and trains. An event of phase X has a begin and a duration, in
// microseconds. Each tid has a row: 1 is the loop, 2 worker 0, and so on. A
// viewer does without the bracket at the end, so the file of a killed run is
// good, too.
func ExampleTiming_picture() {
	file := new(strings.Builder) // in a program os.Create("run.json")
	fmt.Fprintln(file, "[")
	begin := time.Now()
	const event = `{"name": "%s %d", "ph": "X", "pid": 1, "tid": %d, "ts": %.3f, "dur": %.3f},`
	add := func(tid int, name string, batch int, from time.Time, d time.Duration) {
		ts, dur := float64(from.Sub(begin))/1000, float64(d)/1000
		fmt.Fprintf(file, event+"\n", name, batch, tid, ts, dur)
	}
	trace := func(t Timing) {
		wait := t.Received.Add(-t.Wait)
		if !t.First {
			add(1, "train before", t.Batch, wait.Add(-t.Body), t.Body)
		}
		add(1, "wait for", t.Batch, wait, t.Wait)
		add(t.Worker+2, "load", t.Batch, t.Start, t.Done.Sub(t.Start))
	}
	data := Slice[int]{0, 1, 2}
	loader, err := New(data, List[int], Options{BatchSize: 2, Workers: 1, Trace: trace})
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Print(regexp.MustCompile(`\d+\.\d+`).ReplaceAllString(file.String(), "…"))
	// Output:
	// [
	// {"name": "wait for 0", "ph": "X", "pid": 1, "tid": 1, "ts": …, "dur": …},
	// {"name": "load 0", "ph": "X", "pid": 1, "tid": 2, "ts": …, "dur": …},
	// {"name": "train before 1", "ph": "X", "pid": 1, "tid": 1, "ts": …, "dur": …},
	// {"name": "wait for 1", "ph": "X", "pid": 1, "tid": 1, "ts": …, "dur": …},
	// {"name": "load 1", "ph": "X", "pid": 1, "tid": 2, "ts": …, "dur": …},
}

// Progress(os.Stderr, …) shows a bar on a terminal. Anywhere else it writes a
// line every ten seconds, and a last line.
func ExampleProgress() {
	loader, err := New(Slice[int]{1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	var shown strings.Builder
	for batch, err := range Progress(&shown, loader.Len(), loader.Epoch(context.Background(), 0)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	fmt.Println(strings.Fields(shown.String())[:2])
	// Output:
	// [1 2]
	// [3 4]
	// [5]
	// [3/3 100%]
}

// ## Streams: what has no indices, or needs stages of its own

// FromSeq makes a stream of any sequence, here of lines. The lines are
// shuffled, filtered, mapped and read ahead, and a checkpoint in the middle of
// all that resumes.
func ExampleFromSeq() {
	lines := FromSeq(func(ctx context.Context, epoch int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			// Open the file here, and close it when this returns.
			for line := range strings.FieldsSeq("one two three four five six seven eight") {
				if !yield(line, nil) {
					return
				}
			}
		}
	})
	long := lines.Shuffle(4, 1).Filter(func(s string) bool { return len(s) > 3 })
	upper := Map(long, 2, func(_ context.Context, s string) (string, error) {
		return strings.ToUpper(s), nil
	}).Prefetch(3)

	var at Cursor
	for s, err := range upper.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(s, " ")
		if at.Pos >= 5 {
			break
		}
	}
	saved, err := json.Marshal(at)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("| saved at pos", at.Pos)

	var resumed Cursor
	if err := json.Unmarshal(saved, &resumed); err != nil {
		log.Fatal(err)
	}
	for s, err := range upper.Run(context.Background(), &resumed) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(s, " ")
	}
	fmt.Println("| then epoch", resumed.Epoch)
	// Output:
	// FIVE THREE FOUR EIGHT | saved at pos 5
	// SEVEN | then epoch 1
}

// Map makes small stages: list files, load them in two workers, ahead of the
// next stage, and decode them.
func ExampleMap() {
	fsys := fstest.MapFS{
		"a.txt": {Data: []byte("7")},
		"b.txt": {Data: []byte("8")},
		"c.txt": {Data: []byte("9")},
	}
	names, err := fs.Glob(fsys, "*.txt")
	if err != nil {
		log.Fatal(err)
	}
	list := Map(Indices(Sequential(len(names))), 0, Slice[string](names).Get)
	load := Map(list, 2, func(_ context.Context, name string) ([]byte, error) {
		return fs.ReadFile(fsys, name)
	}).Prefetch(10)
	decode := Map(load, 0, func(_ context.Context, data []byte) (int, error) {
		return strconv.Atoi(string(data))
	})
	for number, err := range decode.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(number)
	}
	// Output:
	// 7
	// 8
	// 9
}

// Indices, Map and Batch make a loader's batches. The first comes sooner,
// because all workers fetch its samples.
func ExampleBatch() {
	data := Slice[string]{"a", "b", "c", "d", "e"}
	sampler := Random(data.Len(), 1)
	pipeline := Batch(Map(Indices(sampler), 8, data.Get), 2, List[string])
	loader, err := New(data, List[string], Options{Sampler: sampler, BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for both, err := range Zip(pipeline, StreamOf(loader)).Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(both.First, both.Second)
	}
	// Output:
	// [c b] [c b]
	// [a e] [a e]
	// [d] [d]
}

// Batch takes any Collate, here Pad. A slow collate function may be a Map over
// lists, here in two workers.
func ExampleBatch_collate() {
	words := Map(Indices(Sequential(3)), 0, func(_ context.Context, i int) ([]rune, error) {
		return []rune([]string{"pad", "to", "longest"}[i]), nil
	})
	for padded, err := range Batch(words, 2, Pad('.')).Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(padded.Shape, padded.Lengths, string(padded.Data))
	}
	lists := Batch(words, 2, List[[]rune])
	joined := Map(lists, 2, func(_ context.Context, list [][]rune) (string, error) {
		return string(slices.Concat(list...)), nil
	})
	for text, err := range joined.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(text)
	}
	// Output:
	// [2 3] [3 2] padto.
	// [1 7] [7] longest
	// padto
	// longest
}

// Batches by a budget of tokens, from a stream: a text joins the batch if all
// of it, padded to the longest text, stays within the budget; otherwise it
// begins the next batch. The Next of a batch is that of its last text, so the
// stage needs no State, and a resume reads the text again that did not fit. A
// text above the budget is a batch of its own, and a failed text passes alone.
// On ranks put Shard after the stage, since budgets make other numbers of
// batches of other texts.
func ExampleBatch_tokenBudget() {
	const budget = 12
	type batch = [][]rune
	inBudget := func(texts Stream[[]rune]) Stream[batch] {
		return NewStage(texts, false, func(
			ctx context.Context, texts Stream[[]rune], from Cursor,
		) iter.Seq2[Item[batch], error] {
			return func(yield func(Item[batch], error) bool) {
				send := func(item Item[batch]) bool {
					if ctx.Err() != nil { // since the text was read that did not fit
						yield(Item[batch]{}, context.Cause(ctx))
						return false
					}
					return yield(item, nil)
				}
				var next Item[batch]
				longest := 0
				for text, err := range texts.Items(ctx, from) {
					if err != nil { // the source cannot be continued, and so the stage cannot
						yield(Item[batch]{}, err)
						return
					}
					longest = max(longest, len(text.Value))
					n := len(next.Value)
					if n > 0 && (text.Err != nil || (n+1)*longest > budget) {
						if !send(next) {
							return
						}
						next = Item[batch]{}
						longest = len(text.Value)
					}
					if text.Err == nil {
						next = Item[batch]{Value: append(next.Value, text.Value), Next: text.Next}
					} else if !send(Item[batch]{Err: text.Err, Next: text.Next}) {
						return
					}
				}
				if len(next.Value) > 0 {
					send(next)
				}
			}
		})
	}
	words := strings.Fields("to be or not to be that is the question whether tis nobler")
	runes := func(_ context.Context, i int) ([]rune, error) { return []rune(words[i]), nil }
	texts := Map(Indices(Sequential(len(words))), 2, runes)
	padded := Map(inBudget(texts), 2, func(_ context.Context, b batch) (Padded[rune], error) {
		return Pad('.')(Padded[rune]{}, b)
	})
	for b, err := range padded.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(b.Shape, string(b.Data))
	}
	// Output:
	// [4 3] to.be.or.not
	// [3 4] to..be..that
	// [2 3] is.the
	// [1 8] question
	// [1 7] whether
	// [2 6] tis...nobler
}

// Unbatch lets batch sizes differ between stages: fetch in batches of 4, train
// in batches of 3.
func ExampleUnbatch() {
	ids := Batch(Indices(Sequential(10)), 4, List[int])
	fetched := Map(ids, 2, func(_ context.Context, ids []int) ([]string, error) {
		rows := make([]string, len(ids)) // one query for all of them
		for j, id := range ids {
			rows[j] = fmt.Sprint("row ", id)
		}
		return rows, nil
	})
	batches := Batch(Unbatch(fetched), 3, List[string])
	for batch, err := range batches.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [row 0 row 1 row 2]
	// [row 3 row 4 row 5]
	// [row 6 row 7 row 8]
	// [row 9]
}

// Filter keeps the items for which its function is true. An item that failed
// stays, as an error in its place.
func ExampleStream_Filter() {
	words := []string{"7", "8", "nine", "10"}
	parsed := Map(Indices(Sequential(len(words))), 2, func(_ context.Context, i int) (int, error) {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			return 0, fmt.Errorf("%q is not a number", words[i])
		}
		return n, nil
	})
	kept := parsed.Filter(func(n int) bool { return n != 8 })
	for n, err := range kept.Epoch(context.Background(), 0) {
		var bad *SampleError
		if errors.As(err, &bad) {
			fmt.Println(err)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(n)
	}
	// Output:
	// 7
	// dataloader: epoch 0, the item before pos 3: Map: "nine" is not a number
	// 10
}

// Shard deals a source out to ranks, and Prefetch reads it in its own
// goroutine. Only the loop opens the source.
func ExampleStream_Prefetch() {
	source := FromSeq(func(ctx context.Context, epoch int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			fmt.Println("opened")
			for i := range 6 {
				if !yield(i, nil) {
					return
				}
			}
		}
	})
	part := source.Shard(Rank{Index: 0, Count: 2}, UnevenTail).Prefetch(2)
	fmt.Println("defined")
	for i, err := range part.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(i)
	}
	// Output:
	// defined
	// opened
	// 0
	// 2
	// 4
}

// Mix takes items from three streams in turn. A stream is a definition, so all
// three may read the same source.
func ExampleMix() {
	numbers := Indices(Sequential(3))
	times := func(factor int) Stream[int] {
		return Map(numbers, 0, func(_ context.Context, i int) (int, error) {
			return i * factor, nil
		})
	}
	mix := Mix(MixOptions{}, numbers, times(100), times(111))
	for i, err := range mix.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(i, " ")
	}
	// Output: 0 0 0 1 100 111 2 200 222
}

// MixOptions mix data sets by weight. A mix ends by one of four rules. If b
// shall start over until a ends, mix a and b.Cycle() with StopAtFirst. Weights
// of 3 and 1 spread the items of b. Strictly three items of a and then one of b
// are Unbatch(Map(Zip(Batch(a, 3, List), b), 0, join)), where join appends the
// second half of a pair to the first. Weights count items: of short and long
// documents in equal numbers hardly a token is from the short ones. For shares
// of tokens divide each weight by the mean length, or pack each source into
// rows and mix the rows.
func ExampleMixOptions() {
	letters := func(text string) Stream[string] {
		letter := func(_ context.Context, i int) (string, error) { return text[i : i+1], nil }
		return Map(Indices(Sequential(len(text))), 0, letter)
	}
	a, b := letters("abcdef"), letters("XYZ")
	for _, stop := range []Stop{StopAtLast, StopAtFirst, CycleUntilLast, CycleForever} {
		mix := Mix(MixOptions{Weights: []float64{3, 1}, Seed: 4, Stop: stop}, a, b).Take(24)
		for letter, err := range mix.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(letter)
		}
		fmt.Println()
	}

	const short, long = 400, 4000 // tokens
	documents := func(length int) Stream[int] {
		always := func(context.Context, int) (int, error) { return length, nil }
		return Map(Indices(Sequential(1)).Cycle(), 0, always)
	}
	for _, weights := range [][]float64{{1, 1}, {1. / short, 1. / long}} {
		mix := Mix(MixOptions{Weights: weights}, documents(short), documents(long)).Take(1100)
		tokens := map[int]int{}
		for length, err := range mix.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			tokens[length] += length
		}
		share := 100 * float64(tokens[short]) / float64(tokens[short]+tokens[long])
		fmt.Printf("weights %v: %.0f %% of the tokens are of short documents\n", weights, share)
	}
	// Output:
	// abXcdefYZ
	// abXcdefY
	// abXcdefYabZcdef
	// abXcdefYabZcdefXabYcZdeX
	// weights [1 1]: 9 % of the tokens are of short documents
	// weights [0.0025 0.00025]: 50 % of the tokens are of short documents
}

// Weights of a mixture that change in the course of an epoch: OrderFunc returns
// the whole epoch, so the share of a data set may be any function of epoch and
// position. Samples are drawn without replacement: Resize goes through each
// data set in shuffled passes, and begins another when all samples have been
// drawn. A cursor cannot distinguish two OrderFuncs of one length: change
// Options.Seed together with the weights, and the loader refuses the cursors of
// the old weights.
func ExampleOrderFunc_mixture() {
	easy, hard := slices.Repeat(Slice[string]{"e"}, 30), slices.Repeat(Slice[string]{"H"}, 20)
	const n = 40 // samples in an epoch
	order := OrderFunc(n, func(epoch int) (indices []int) {
		var draw [2]func(k int) int
		for d, size := range []int{len(easy), len(hard)} {
			draw[d] = Resize(Random(size, uint64(d)), (n/size+1)*size).Order(epoch)
		}
		rng := rand.New(rand.NewPCG(1, uint64(epoch)))
		var drawn [2]int
		for pos := range n {
			d := 0
			if rng.Float64() < float64(pos)/n { // the share of the hard samples grows from 0 to 1
				d = 1
			}
			indices = append(indices, d*len(easy)+draw[d](drawn[d]))
			drawn[d]++
		}
		return indices
	})
	loader, err := New(Concat[string](easy, hard), List[string], Options{
		BatchSize: 10, Sampler: order, Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(strings.Join(batch, ""))
	}
	// Output:
	// eeHeeeHHee
	// HeeHHHeHHH
	// HeHeHHeHee
	// HHHHHHHeHH
}

// A mixture is a Sampler of several data sets, which stand one after the other,
// as in Concat: set s begins at begins[s], and has the order samplers[s]. At
// each position of an epoch, pick says which set it is, and at which position
// of that set's order.
type mixture struct {
	n        int
	name     string // for cursors: other lengths, weights or seeds are another order
	samplers []Sampler
	begins   []int
	pick     func(epoch int) func(pos int) (set, at int)
}

func (m mixture) Len() int { return m.n }

func (m mixture) String() string { return m.name }

func (m mixture) Order(epoch int) func(pos int) int {
	pick := m.pick(epoch)
	orders := make([]func(pos int) int, len(m.samplers))
	for s, sampler := range m.samplers {
		orders[s] = sampler.Order(epoch)
	}
	return func(pos int) int {
		s, at := pick(pos)
		return m.begins[s] + orders[s](at)
	}
}

// Many data sets, mixed by weight: a draw takes the same time for 1,000 data
// sets as for two. The order is a function of the position, so it resumes
// anywhere, is dealt out to ranks, and has a cursor of one line. Samples are
// drawn with replacement. The seed that draws the data set is not the one that
// draws the sample: equal seeds would draw both with one random number. Weights
// count samples; for shares of tokens divide each by its data set's mean
// length. Copy the type mixture, too, which stands before this Example.
func ExampleSampler_mixture() {
	const sets, n, seed = 1000, 40_000, 1 // n samples in an epoch
	var parts []Dataset[int]              // a sample says of which data set it is
	weights := make([]float64, sets)
	m := mixture{n: n}
	end := 0
	for s := range sets {
		size := 5 + s%7
		parts = append(parts, Func(size, func(context.Context, int) (int, error) { return s, nil }))
		weights[s] = 1 + float64(s%2)
		m.samplers = append(m.samplers, RandomWithReplacement(size, n, seed+1))
		m.begins = append(m.begins, end)
		end += size
	}
	choose, err := Weighted(weights, n, true, seed)
	if err != nil {
		log.Fatal(err)
	}
	sum := crc32.ChecksumIEEE(fmt.Append(nil, m.begins, end))
	m.name = fmt.Sprintf("mixture(%v, begins #%x)", choose, sum)
	m.pick = func(epoch int) func(pos int) (set, at int) {
		set := choose.Order(epoch)
		return func(pos int) (int, int) { return set(pos), pos }
	}
	loader, err := New(Concat(parts...), List[int], Options{BatchSize: 50, Sampler: m, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	var drawn [2]int // from data sets of weight 1, and of weight 2
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		for _, s := range batch {
			drawn[s%2]++
		}
	}
	fmt.Println(drawn)
	// Output: [13274 26726]
}

// Every batch has exactly three, two and one samples of three data sets. A
// sample of a small data set comes again only when all of that set have come,
// also across epochs; where two passes meet, it may be twice in a batch. Each
// batch is a function of its number, so an epoch resumes anywhere, and each
// rank gets whole batches. Copy the type mixture, too, which stands before
// ExampleSampler_mixture.
func ExampleBatches_quota() {
	const steps, seed = 4, 1 // steps batches in an epoch
	parts := []Dataset[string]{
		Slice[string]{"a", "b", "c", "d", "e", "f", "g"},
		Slice[string]{"X", "Y", "Z"},
		Slice[string]{"1", "2"},
	}
	perBatch := []int{3, 2, 1}
	var m mixture
	var places [][2]int // of a batch: the set, and which of the set's samples in the batch
	end := 0
	for s, part := range parts {
		for j := range perBatch[s] {
			places = append(places, [2]int{s, j})
		}
		shuffled := Resize(Random(part.Len(), seed+uint64(s)), steps*perBatch[s])
		m.samplers = append(m.samplers, shuffled)
		m.begins = append(m.begins, end)
		end += part.Len()
	}
	m.n = steps * len(places)
	m.name = fmt.Sprintf("quota(%v of %v)", perBatch, m.samplers)
	m.pick = func(int) func(pos int) (set, at int) {
		return func(pos int) (int, int) {
			place := places[pos%len(places)]
			return place[0], pos/len(places)*perBatch[place[0]] + place[1]
		}
	}
	loader, err := New(Concat(parts...), List[string], Options{
		BatchSampler: Batches(m, len(places), false), Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [a f d Y X 1]
	// [b g e Z Z 2]
	// [c b g Y X 2]
	// [d c f Z X 1]
}

// Chain puts streams one after the other. Repeat, Take and Shard change one
// stream, and Zip joins two item by item.
func ExampleChain() {
	low := Indices(Sequential(3))
	high := Map(low, 0, func(_ context.Context, i int) (int, error) { return 10 + i, nil })
	for _, s := range []Stream[int]{
		Chain(low, high),
		low.Repeat(2),
		low.Cycle().Take(8), // endless without Take
		Chain(low, high).Shard(Rank{Index: 1, Count: 2}, UnevenTail),
	} {
		var all []int
		for i, err := range s.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			all = append(all, i)
		}
		fmt.Println(all)
	}
	for pair, err := range Zip(low, high).Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(pair, " ")
	}
	// Output:
	// [0 1 2 10 11 12]
	// [0 1 2 0 1 2]
	// [0 1 2 0 1 2 0 1]
	// [1 10 12]
	// {0 10} {1 11} {2 12}
}

// Stream makes a stream of a loader. Its items carry the cursor that follows
// them, failed items too.
func ExampleStreamOf() {
	data := Func(5, func(ctx context.Context, i int) (int, error) {
		if i == 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	loader, err := New(data, List[int], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	var stream Stream[[]int] = StreamOf(loader)
	var last Item[[]int]
	for item, err := range stream.Items(context.Background(), Cursor{Epoch: 7}) {
		if err != nil { // the stream cannot be continued
			log.Fatal(err)
		}
		fmt.Println(item.Value, item.Err, "then epoch", item.Next.Epoch, "pos", item.Next.Pos)
		last = item
	}
	for item, err := range stream.Items(context.Background(), last.Next) {
		fmt.Println("nothing follows the last item, but here is", item, err)
	}
	// Output:
	// [0 1] <nil> then epoch 7 pos 2
	// [] dataloader: epoch 7, batch 1, sample 3: unexpected EOF then epoch 7 pos 4
	// [4] <nil> then epoch 7 pos 5
}

// ## Recipes: loops and batches

// Rare classes come as often as the others if the weight of each sample is 1
// divided by the size of its class. Put in your own samples and labels. An
// epoch then repeats samples of rare classes and leaves out samples of frequent
// ones, so augment when you train, and evaluate without a sampler.
func ExampleWeighted() {
	var samples Slice[Pair[string, int]] // names and labels: 90 cats and 10 dogs
	for i := range 100 {
		label := 0
		if i%10 == 9 {
			label = 1
		}
		samples = append(samples, Pair[string, int]{First: fmt.Sprintf("%d.png", i), Second: label})
	}
	sizes := map[int]int{}
	for _, s := range samples {
		sizes[s.Second]++
	}
	weights := make([]float64, len(samples))
	for i, s := range samples {
		weights[i] = 1 / float64(sizes[s.Second])
	}
	// With replacement: there are only 10 dogs.
	balanced, err := Weighted(weights, len(samples), true, 1)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(samples, List[Pair[string, int]], Options{BatchSize: 25, Sampler: balanced})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		count := [2]int{}
		for _, s := range batch {
			count[s.Second]++
		}
		fmt.Println("cats", count[0], "dogs", count[1])
	}
	// Output:
	// cats 14 dogs 11
	// cats 12 dogs 13
	// cats 13 dogs 12
	// cats 14 dogs 11
}

// A stratified split divides each class on its own, so that each part has the
// same share of every class. With balanced sampling the training draws every
// class equally often. Both need only the labels, from a column of a CSV file
// or from Folder; no sample is loaded for them. Put in your own labels and
// fraction. The same seed makes the same split. A class with fewer than five
// samples has none in the test set. To keep the classes' shares in training,
// set Shuffle instead of Sampler.
func ExampleSubset_stratified() {
	var labels []string // 80 cats and 20 dogs
	for i := range 100 {
		labels = append(labels, []string{"cat", "cat", "dog", "cat", "cat"}[i%5])
	}
	var loaded atomic.Int64
	samples := Func(len(labels), func(_ context.Context, i int) (string, error) {
		loaded.Add(1) // open and decode
		return labels[i], nil
	})

	classes := map[string][]int{} // the indices of each class
	for i, label := range labels {
		classes[label] = append(classes[label], i)
	}
	var train, test []int // indices
	var weights []float64 // of the samples of train
	// Keys are sorted, because the order of a map changes from run to run, and
	// with it the indices of the samples in train.
	for _, label := range slices.Sorted(maps.Keys(classes)) {
		class := classes[label]
		shuffled := Random(len(class), 42).Order(0)
		n := len(class) / 5 // a fifth for the test
		for pos := range class {
			if i := class[shuffled(pos)]; pos < n {
				test = append(test, i)
			} else {
				train = append(train, i)
				weights = append(weights, 1/float64(len(class)-n))
			}
		}
	}
	balanced, err1 := Weighted(weights, len(train), true, 1)
	trainSet, err2 := Subset(samples, train)
	testSet, err3 := Subset(samples, test)
	trainLoader, err4 := New(trainSet, List[string], Options{BatchSize: 40, Sampler: balanced})
	testLoader, err5 := New(testSet, List[string], Options{BatchSize: 40})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(train), "for training,", len(test), "for the test,",
		"loaded so far:", loaded.Load())
	for _, loader := range []*DataLoader[[]string]{trainLoader, testLoader} {
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			count := map[string]int{}
			for _, label := range batch {
				count[label]++
			}
			fmt.Println(count)
		}
	}
	// Output:
	// 80 for training, 20 for the test, loaded so far: 0
	// map[cat:16 dog:24]
	// map[cat:21 dog:19]
	// map[cat:16 dog:4]
}

// A split by key: all images of a patient, or all parts of a document, are on
// one side, which a hash of the key decides. There they stay when the data
// grow, also with a larger share for the test. Split, ExampleSubset_stratified
// and ExampleSplit_crossValidation deal out samples: one patient is on both
// sides, and of more samples they make another split. Put in your own keys, and
// keep the text before the key, which is the split's seed. With few keys, or
// with a key that has much of the data, the lengths may be far from the share:
// look at them. Split first; repeat, weight or augment what is trained on.
func ExampleSubset_byKey() {
	patient := func(image int) int { return image / 5 } // from its name, or a table
	isTest := func(image int) bool {
		sum := sha256.Sum256(fmt.Appendf(nil, "split 1, patient %d", patient(image)))
		return float64(binary.BigEndian.Uint32(sum[:]))/(1<<32) < 0.2
	}
	numbers := func(n int) Dataset[int] {
		return Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
	}
	byKey := func(images Dataset[int]) (parts []Dataset[int], err error) {
		var indices [2][]int // for training, for the test
		for i := range images.Len() {
			side := 0
			if isTest(i) {
				side = 1
			}
			indices[side] = append(indices[side], i)
		}
		train, err1 := Subset(images, indices[0])
		test, err2 := Subset(images, indices[1])
		return []Dataset[int]{train, test}, errors.Join(err1, err2)
	}
	bySample := func(images Dataset[int]) ([]Dataset[int], error) {
		n := images.Len()
		return Split(images, 1, n-n/5, n/5)
	}

	read := func(part Dataset[int]) (images []int) {
		loader, err := New(part, List[int], Options{BatchSize: 100})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			images = append(images, batch...)
		}
		return images
	}
	for name, split := range [](func(Dataset[int]) ([]Dataset[int], error)){bySample, byKey} {
		parts, err1 := split(numbers(3000))
		grown, err2 := split(numbers(4500))
		if err := errors.Join(err1, err2); err != nil {
			log.Fatal(err)
		}
		patients := map[int]bool{}
		for _, image := range read(parts[0]) {
			patients[patient(image)] = true
		}
		later := read(grown[0])
		test, leaked, moved := read(parts[1]), 0, 0
		for _, image := range test {
			if patients[patient(image)] {
				leaked++
			}
			if slices.Contains(later, image) {
				moved++
			}
		}
		fmt.Println([]string{"by sample:", "by key:"}[name], len(test), "test images,", leaked,
			"of patients in the training;", moved, "in that of 4,500 images")
	}
	// Output:
	// by sample: 600 test images, 600 of patients in the training; 478 in that of 4,500 images
	// by key: 570 test images, 0 of patients in the training; 0 in that of 4,500 images
}

// In k-fold cross-validation each of k models is tested on a part of the data
// that it has not been trained on. Split makes the parts, and Concat joins all
// but one. Change k. DataVersion names the fold, so that the loader of one fold
// refuses the cursors of another.
func ExampleSplit_crossValidation() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	const k = 3
	lengths := make([]int, k)
	for fold := range k {
		lengths[fold] = (fold+1)*len(data)/k - fold*len(data)/k // they differ by one at most
	}
	parts, err := Split(data, 1, lengths...)
	if err != nil {
		log.Fatal(err)
	}
	read := func(part Dataset[int], opts Options) (all []int) {
		loader, err := New(part, List[int], opts)
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			all = append(all, batch...)
		}
		return all
	}
	for fold, test := range parts {
		train := Concat(slices.Concat(parts[:fold], parts[fold+1:])...)
		name := fmt.Sprint("fold ", fold)
		fmt.Println(name)
		fmt.Println("  train", read(train, Options{BatchSize: 4, Shuffle: true, DataVersion: name}))
		fmt.Println("  test ", read(test, Options{BatchSize: 4}))
	}
	// Output:
	// fold 0
	//   train [2 4 9 3 0 8 7]
	//   test  [5 6 1]
	// fold 1
	//   train [5 4 9 3 6 1 7]
	//   test  [2 0 8]
	// fold 2
	//   train [6 8 1 0 2 5]
	//   test  [9 3 7 4]
}

// Files in two folders that belong together by name: images and labels, or
// images and masks. If a file is missing in each folder, Pairs of two Files
// joins the wrong ones without an error. match joins the files below two
// folders, at any depth, by their names without the folder and the extension,
// and refuses those without a partner. Put in your own folders. The pairs are a
// data set, and Transform reads and decodes its files.
func ExamplePairs_byName() {
	fsys := fstest.MapFS{ // or os.DirFS("train")
		"images/0001.jpg": {}, "labels/0001.txt": {},
		"images/0002.jpg": {},
		"images/0003.jpg": {}, "labels/0003.txt": {},
		"labels/0004.txt": {},
	}
	match := func(folders ...string) (Slice[Pair[string, string]], error) {
		found := map[string][2]string{} // the two names of a key, such as 0001 or day1/0001
		for side, folder := range folders {
			err := fs.WalkDir(fsys, folder, func(name string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				key := strings.TrimSuffix(strings.TrimPrefix(name, folder+"/"), path.Ext(name))
				both := found[key]
				if both[side] != "" {
					return fmt.Errorf("%s and %s have the same name", both[side], name)
				}
				both[side] = name
				found[key] = both
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		var pairs Slice[Pair[string, string]]
		var alone []string
		for _, k := range slices.Sorted(maps.Keys(found)) { // in the same order in each process
			both := found[k]
			if both[0] == "" || both[1] == "" {
				alone = append(alone, both[0]+both[1])
			}
			pairs = append(pairs, Pair[string, string]{First: both[0], Second: both[1]})
		}
		if len(alone) > 0 {
			return nil, fmt.Errorf("files without a partner: %v", alone)
		}
		return pairs, nil
	}

	_, err := match("images", "labels")
	fmt.Println(err)
	delete(fsys, "images/0002.jpg")
	delete(fsys, "labels/0004.txt")
	pairs, err := match("images", "labels")
	fmt.Println(pairs, err)
	// Output:
	// files without a partner: [images/0002.jpg labels/0004.txt]
	// [{images/0001.jpg labels/0001.txt} {images/0003.jpg labels/0003.txt}] <nil>
}

// A batch of three fields is a struct with a Collate of its own. Put in your
// own fields. Fill the slices of dst from their start, as append to dst[:0]
// does: then a batch that was given back with Recycle is filled again, and the
// loop allocates no new one. Without a struct, nested pairs do the same:
//
//	CollatePair(Stack[float32], CollatePair(List[int32], List[string])) // of Pair[Tensor[float32], Pair[int32, string]]
func ExampleCollate_struct() {
	type sample struct {
		image Tensor[float32]
		label int32
		name  string
	}
	type batch struct {
		images Tensor[float32]
		labels []int32
		names  []string
	}
	data := Func(5, func(ctx context.Context, i int) (sample, error) {
		x := float32(i)
		return sample{
			image: Tensor[float32]{Data: []float32{x, x, x, x}, Shape: []int{2, 2}},
			label: int32(i % 2),
			name:  fmt.Sprintf("%d.png", i),
		}, nil
	})
	collate := func(dst batch, samples []sample) (batch, error) {
		images := make([]Tensor[float32], len(samples))
		dst.labels = dst.labels[:0]
		dst.names = dst.names[:0]
		for i, s := range samples {
			images[i] = s.image
			dst.labels = append(dst.labels, s.label)
			dst.names = append(dst.names, s.name)
		}
		var err error
		dst.images, err = Stack(dst.images, images)
		return dst, err
	}
	loader, err := New(data, collate, Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	memory := map[any]bool{}
	for b, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(b.images.Shape, b.images.Data, b.labels, b.names)
		memory[&b.images.Data[0]] = true
		memory[&b.labels[0]] = true
		memory[&b.names[0]] = true
		loader.Recycle(b)
	}
	fmt.Println(loader.Len(), "batches in", len(memory), "slices")
	// Output:
	// [2 2 2] [0 0 0 0 1 1 1 1] [0 1] [0.png 1.png]
	// [2 2 2] [2 2 2 2 3 3 3 3] [0 1] [2.png 3.png]
	// [1 2 2] [4 4 4 4] [0] [4.png]
	// 3 batches in 3 slices
}

// Workers end with their epoch, so each epoch begins with a wait for its first
// batch. If epochs are short, make them longer: Resize joins several passes
// through the data into one epoch, here three, and the workers load the next
// pass ahead. The cursor's Epoch counts the joined epochs, and the pass follows
// from its Pos. If BatchSize does not divide the number of samples, some
// batches hold samples of two passes.
func ExampleResize() {
	const passes = 3
	var fetched atomic.Int64
	second := make(chan bool) // closed when the first sample of the second pass is fetched
	data := Func(4, func(ctx context.Context, i int) (int, error) {
		if fetched.Add(1) == 5 {
			close(second)
		}
		return i, nil
	})
	sampler := Resize(Random(data.Len(), 1), passes*data.Len())
	loader, err := New(data, List[int], Options{BatchSize: 2, Sampler: sampler, Workers: 1})
	if err != nil {
		log.Fatal(err)
	}
	var at Cursor
	for batch, err := range loader.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		pass := at.Epoch*passes + (at.Pos-1)/data.Len()
		fmt.Println("pass", pass, batch, "cursor", at.Epoch, at.Pos)
		if at.Pos == data.Len() {
			<-second // would wait for ever if the worker waited for the end of the loop body
			fmt.Println("the worker is ahead in pass 1, the loop body still in pass 0")
		}
	}
	fmt.Println("then epoch", at.Epoch)
	// Output:
	// pass 0 [3 2] cursor 0 2
	// pass 0 [1 0] cursor 0 4
	// the worker is ahead in pass 1, the loop body still in pass 0
	// pass 1 [0 1] cursor 0 6
	// pass 1 [2 3] cursor 0 8
	// pass 2 [1 2] cursor 0 10
	// pass 2 [3 0] cursor 0 12
	// then epoch 1
}

// Cycle does in a pipeline what Resize does for a loader: its epoch never ends,
// so the workers of Map do not stop between two passes. Put Cycle before the
// stages with workers; after them it would stop them at the end of each pass.
// The loop ends after a number of steps. The cursor's Epoch stays 0, and its
// State holds the pass and the place in the pass.
func ExampleStream_Cycle() {
	data := Slice[string]{"a", "b", "c", "d"}
	forever := Indices(Random(data.Len(), 1)).Cycle()
	batches := Batch(Map(forever, 2, data.Get), 2, List[string])

	var at Cursor
	steps := 5
	for batch, err := range batches.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("pass", (at.Pos-1)/data.Len(), batch)
		if steps--; steps == 0 {
			break
		}
	}
	saved, err := json.Marshal(at)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(saved))
	// Output:
	// pass 0 [d c]
	// pass 0 [b a]
	// pass 1 [a b]
	// pass 1 [c d]
	// pass 2 [b c]
	// {"epoch":0,"pos":10,"state":{"by":"Repeat(0)","n":2,"source":{"epoch":2,"pos":2,"state":{"by":"Indices(Random(4, seed 1))"}},"past":"4fb681edf500b54f"}}
}

// Which sample hangs? A timer around Get names the sample while it is being
// loaded, when that has taken too long. A second line comes if Get returns
// after all: then the sample is only slow. A timer takes less than a
// microsecond. Put in your own data and limit, and log what helps to find the
// sample: its file, Worker(ctx), the time. In a pipeline put the timer into
// Map's function. ExampleFunc_timeLimit ends such a Get.
func ExampleFunc_hang() {
	answer := make(chan bool, 1)
	data := Func(8, func(ctx context.Context, i int) (string, error) {
		if i == 5 {
			<-answer // of a server that hangs
		}
		return fmt.Sprint("sample ", i), nil
	})

	const limit = time.Second / 4 // in a program a minute
	watched := Func(data.Len(), func(ctx context.Context, i int) (string, error) {
		timer := time.AfterFunc(limit, func() {
			fmt.Println("sample", i, "has been loading for", limit)
			answer <- true // here, so that the loop goes on
		})
		defer func() {
			if !timer.Stop() {
				fmt.Println("sample", i, "has returned")
			}
		}()
		return data.Get(ctx, i)
	})
	loader, err := New(watched, List[string], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [sample 0 sample 1]
	// [sample 2 sample 3]
	// sample 5 has been loading for 250ms
	// sample 5 has returned
	// [sample 4 sample 5]
	// [sample 6 sample 7]
}

// A Get that fails is tried again, up to three times in all, after a pause that
// ends with the context. Every attempt draws the same random numbers, because
// each WithSeed makes a new generator of one seed. Outside a loader, where Rand
// alone would panic, they depend only on the index. A panic is not tried again.
// Put in your own data and pause.
func ExampleFunc_retry() {
	const attempts, pause = 3, time.Millisecond // for a server a second, or more
	failures, before := 2, 0
	remote := Func(2, func(ctx context.Context, i int) (string, error) {
		number := Rand(ctx).Int()
		if failures--; failures >= 0 {
			before = number
			return "", io.ErrUnexpectedEOF
		}
		return fmt.Sprint("sample ", i, ", drawn as in the attempt before: ", number == before), nil
	})
	retried := Func(remote.Len(), func(ctx context.Context, i int) (sample string, err error) {
		for attempt := range attempts {
			select { // no pause before the first attempt
			case <-time.After(pause * time.Duration(attempt)):
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
			if sample, err = remote.Get(WithSeed(ctx, uint64(i)), i); err == nil {
				return sample, nil
			}
		}
		return "", fmt.Errorf("after %d attempts: %w", attempts, err)
	})
	loader, err := New(retried, List[string], Options{})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	failures = 2
	fmt.Println(retried.Get(context.Background(), 1)) // outside a loader
	// Output:
	// [sample 0, drawn as in the attempt before: true]
	// [sample 1, drawn as in the attempt before: false]
	// sample 1, drawn as in the attempt before: true <nil>
}

// A time limit for each sample: one that takes too long fails, and OnError
// drops it from its batch. Put in your own data and limit. Get must watch its
// context, as clients of databases and web servers do; a Get that does not
// cannot be stopped. A retry around limited (ExampleFunc_retry) gives each
// attempt the limit; a limit around the retry covers all attempts.
func ExampleFunc_timeLimit() {
	data := Func(6, func(ctx context.Context, i int) (string, error) {
		if i == 3 {
			<-ctx.Done() // a server that never answers
			return "", ctx.Err()
		}
		return fmt.Sprint("sample ", i), nil
	})
	limited := Func(data.Len(), func(ctx context.Context, i int) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		return data.Get(ctx, i)
	})
	drop := func(bad *SampleError) error {
		if errors.Is(bad, context.DeadlineExceeded) {
			fmt.Println("too slow: sample", bad.Index)
			return nil
		}
		return bad
	}
	loader, err := New(limited, List[string], Options{BatchSize: 3, Workers: 2, OnError: drop})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [sample 0 sample 1 sample 2]
	// too slow: sample 3
	// [sample 4 sample 5]
}

// A decoder or a connection that goroutines must not share is opened once for
// each worker. Worker is -1 in the caller's goroutine, so there is one handle
// more than workers; no lock is needed. Two loops at the same time have workers
// with the same numbers, and so have two Maps: give each its own handles, or
// use a sync.Pool.
func ExampleWorker() {
	type handle struct{ buffer bytes.Buffer } // open file, decoder, connection
	const workers = 3
	handles := make([]*handle, workers+1)
	var opened atomic.Int64
	data := Func(9, func(ctx context.Context, i int) (string, error) {
		h := handles[Worker(ctx)+1]
		if h == nil {
			h = new(handle) // open
			handles[Worker(ctx)+1] = h
			opened.Add(1)
		}
		h.buffer.Reset() // two goroutines with one handle would overwrite each other's text
		for range i + 1 {
			fmt.Fprint(&h.buffer, i)
		}
		return h.buffer.String(), nil
	})
	loader, err := New(data, List[string], Options{BatchSize: 3, Workers: workers})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	fmt.Println("opened at most", workers, "handles:", opened.Load() <= workers,
		"and by the caller:", handles[0] != nil)
	clear(handles) // close: no worker runs after the loop
	// Output:
	// [0 11 222]
	// [3333 44444 555555]
	// [6666666 77777777 888888888]
	// opened at most 3 handles: true and by the caller: false
}

// Batches in memory of your own: pinned memory, memory of C, or a mapped file.
// Recycle gives it to the loader before the loop, in Workers × Prefetch + 2
// pieces: for the batches in flight, the batch in the loop body, and the batch
// before, which may still be on its way to the device. Each piece must hold a
// whole batch; load refuses any other memory, where Stack would allocate. A
// loop that is left early drops pieces, and so does a batch that fails: make a
// new loader then, and give it all the pieces.
func ExampleDataLoader_Recycle_ownMemory() {
	const n, width, batchSize, workers, prefetch = 40, 3, 4, 2, 2
	const pieces = workers*prefetch + 2
	// In a program: cudaMallocHost, C.malloc with unsafe.Slice, syscall.Mmap, …
	memory := make([]float32, pieces*batchSize*width)

	load := func(ctx context.Context, dst Tensor[float32], indices []int) (Tensor[float32], error) {
		size := len(indices) * width
		if cap(dst.Data) < size {
			return dst, errors.New("no memory was given back for this batch")
		}
		dst.Data = dst.Data[:size]
		dst.Shape = append(dst.Shape[:0], len(indices), width)
		for row, i := range indices {
			for j := range width {
				dst.Data[row*width+j] = float32(10*i + j) // read and decode into the batch
			}
		}
		return dst, nil
	}
	loader, err := NewBatchFunc(n, load, Options{
		BatchSize: batchSize, Workers: workers, Prefetch: prefetch,
	})
	if err != nil {
		log.Fatal(err)
	}
	for piece := range slices.Chunk(memory, batchSize*width) {
		loader.Recycle(Tensor[float32]{Data: piece})
	}
	var before Tensor[float32]
	batches := 0
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		batches++ // begin to upload batch
		if before.Data != nil {
			loader.Recycle(before) // its upload has ended
		}
		before = batch
	}
	loader.Recycle(before)
	last := before.Data[len(before.Data)-width:]
	fmt.Println(batches, "batches in", pieces, "pieces; the last row is", last)
	// Output:
	// 10 batches in 6 pieces; the last row is [390 391 392]
}

// A framework that asks for the next batch, as GoMLX's train.Dataset does with
// Yield and Reset, gets it from iter.Pull2. Between two calls of next the
// cursor stands after the batch in hand, so it is the checkpoint as in a loop.
// DropLast makes all batches equally large, for frameworks that compile a graph
// for each shape. Call stop when you leave an epoch early, because its
// goroutines live until then, and after an error, because next would then
// report the end of the epoch.
func ExampleDataLoader_Run_pull() {
	type sample = Pair[Tensor[float32], Tensor[int32]] // features, and a label of the shape [1]
	data := Func(5, func(ctx context.Context, i int) (sample, error) {
		x := float32(i)
		return sample{
			First:  Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}},
			Second: Tensor[int32]{Data: []int32{int32(i % 2)}, Shape: []int{1}},
		}, nil
	})
	loader, err := New(data, CollatePair(Stack[float32], Stack[int32]), Options{
		BatchSize: 2, DropLast: true, Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	type batch = Pair[Tensor[float32], Tensor[int32]]
	var at Cursor
	var next func() (batch, error, bool)
	stop := func() {}
	reset := func() { // begins an epoch: the next one after io.EOF, the same one in its middle
		stop()
		next = nil
		at = Cursor{Epoch: at.Epoch}
	}
	yield := func() (batch, error) {
		if next == nil {
			next, stop = iter.Pull2(loader.Run(context.Background(), &at))
		}
		b, err, ok := next()
		if !ok {
			err = io.EOF
		}
		if err != nil {
			stop()
			next = nil // the next call begins at the cursor, and tries a failed batch again
		}
		return b, err
	}
	for range 4 {
		b, err := yield()
		fmt.Println(b.First.Shape, b.First.Data, b.Second.Shape, b.Second.Data, err,
			"cursor", at.Epoch, at.Pos)
	}
	reset()
	fmt.Println("cursor", at.Epoch, at.Pos)
	// Output:
	// [2 2] [0 0 1 1] [2 1] [0 1] <nil> cursor 0 2
	// [2 2] [2 4 3 9] [2 1] [0 1] <nil> cursor 0 4
	// [] [] [] [] EOF cursor 1 0
	// [2 2] [0 0 1 1] [2 1] [0 1] <nil> cursor 1 2
	// cursor 1 0
}

// A source of your own is a function from a cursor to the items after it. This
// one reads numbers, one in a line. The State of its cursors is the offset of
// the next line, so a resume seeks, where FromSeq would read the file again.
// Put in your own file, State and items. The helper checkStream in
// dataloader_test.go tests a stream of your own.
func ExampleNewStream() {
	file := strings.NewReader("1\n22\nthree\n4\n5")
	type state struct {
		By     string `json:"by"`
		Offset int64  `json:"offset"`
	}
	const by = "numbers.txt" // tells its cursors from those of other streams
	numbers := NewStream(func(ctx context.Context, from Cursor) iter.Seq2[Item[int], error] {
		return func(yield func(Item[int], error) bool) {
			var at state
			err := from.Load(&at) // which leaves at as it is at the start of an epoch
			if err == nil && at.By != by && (from.Pos != 0 || from.State != nil) {
				err = fmt.Errorf("%w %v is not of %s", ErrCursor, from, by)
			}
			if err != nil {
				yield(Item[int]{}, err) // an error of the sequence is its last pair
				return
			}
			lines := bufio.NewReader(io.NewSectionReader(file, at.Offset, math.MaxInt64-at.Offset))
			for pos := from.Pos + 1; ; pos++ {
				line, err := lines.ReadString('\n')
				if err == io.EOF {
					if line == "" {
						return // the epoch is complete, even if ctx has ended
					}
					err = nil // the last line has no end
				}
				if err == nil {
					err = context.Cause(ctx) // before each item: has ctx ended?
				}
				if err != nil {
					yield(Item[int]{}, err)
					return
				}
				at = state{by, at.Offset + int64(len(line))}
				item := Item[int]{Next: Cursor{Epoch: from.Epoch, Pos: pos, State: at}}
				n, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
				if err == nil {
					item.Value = n
				} else { // Value stays zero, and Next is the cursor after the item
					item.Err = fmt.Errorf("%q is not a number", line)
				}
				if !yield(item, nil) {
					return
				}
			}
		}
	})
	var at Cursor
	for n, err := range numbers.Run(context.Background(), &at) {
		fmt.Println(n, err)
		if n == 22 {
			break
		}
	}
	saved, err := json.Marshal(at)
	fmt.Println(string(saved), err)
	for n, err := range numbers.Run(context.Background(), &at) {
		fmt.Println(n, err)
	}
	// Output:
	// 1 <nil>
	// 22 <nil>
	// {"epoch":0,"pos":2,"state":{"by":"numbers.txt","offset":5}} <nil>
	// 0 dataloader: epoch 0, the item before pos 3: "three\n" is not a number
	// 4 <nil>
	// 5 <nil>
}

// A stage of your own is a function from a stream to a stream. This one pairs
// each item with the item before it. The State of its cursors is the source's
// cursor before the last item, because a resume must read that item again. A
// stage that decides about each item alone needs no State: it yields each item
// with the Next that the item has.
func ExampleNewStage() {
	type pair = Pair[string, string]
	type state struct {
		By     string `json:"by"`
		Source Cursor `json:"source"`
	}
	const by = "neighbours"
	neighbours := func(source Stream[string]) Stream[pair] {
		return NewStage(source, false, func(
			ctx context.Context, source Stream[string], from Cursor,
		) iter.Seq2[Item[pair], error] {
			return func(yield func(Item[pair], error) bool) {
				// At the start of an epoch Load leaves at as it is.
				at := state{Source: Cursor{Epoch: from.Epoch}}
				err := from.Load(&at)
				if err == nil && at.By != by && (from.Pos != 0 || from.State != nil) {
					err = fmt.Errorf("%w %v is not of %s", ErrCursor, from, by)
				}
				if err != nil {
					yield(Item[pair]{}, err)
					return
				}
				var last Item[string]
				pos := from.Pos - 1 // the first item has no neighbour yet
				// The source looks at ctx before each item.
				for item, err := range source.Items(ctx, at.Source) {
					if err != nil { // the source cannot be continued, and so the stage cannot
						yield(Item[pair]{}, err)
						return
					}
					if pos++; pos > from.Pos {
						next := Cursor{Epoch: from.Epoch, Pos: pos, State: state{by, last.Next}}
						out := Item[pair]{Next: next}
						out.Err = cmp.Or(last.Err, item.Err)
						if out.Err == nil {
							out.Value = pair{First: last.Value, Second: item.Value}
						}
						if !yield(out, nil) {
							return
						}
					}
					last = item
				}
			}
		})
	}
	words := Slice[string]{"to", "be", "or", "not"}
	pairs := neighbours(Map(Indices(Sequential(len(words))), 2, words.Get))
	var at Cursor
	for at.Epoch == 0 { // leave the loop and resume after each pair
		for p, err := range pairs.Run(context.Background(), &at) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(p.First, p.Second, at)
			break
		}
	}
	// Output:
	// to be {"epoch":0,"pos":1,"state":{"by":"neighbours","source":{"epoch":0,"pos":1,"state":{"by":"Indices(Sequential(4))"}}}}
	// be or {"epoch":0,"pos":2,"state":{"by":"neighbours","source":{"epoch":0,"pos":2,"state":{"by":"Indices(Sequential(4))"}}}}
	// or not {"epoch":0,"pos":3,"state":{"by":"neighbours","source":{"epoch":0,"pos":3,"state":{"by":"Indices(Sequential(4))"}}}}
}

// OnError drops failed items of a stream, here two at most; a third would fail
// its batch. Put OnError behind Shuffle and Unbatch, and before Batch:
// otherwise one failed item fails its whole batch. Count or log what is
// dropped: otherwise a source whose every item fails looks empty. A stream
// knows only the position of an item, so the function of Map should name the
// item in its error. A resume may ask again about an item that was dropped
// before.
func ExampleStream_OnError() {
	words := []string{"1", "2", "three", "4", "five", "6", "7"}
	numbers := Map(Indices(Sequential(len(words))), 2, func(_ context.Context, i int) (int, error) {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			return 0, fmt.Errorf("word %d, %q, is not a number", i, words[i])
		}
		return n, nil
	})
	dropped := 0
	sound := numbers.OnError(func(bad *SampleError) error {
		if dropped++; dropped > 2 {
			return bad
		}
		fmt.Println("dropped:", bad.Err)
		return nil
	})
	for batch, err := range Batch(sound, 2, List[int]).Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [1 2]
	// dropped: Map: word 2, "three", is not a number
	// dropped: Map: word 4, "five", is not a number
	// [4 6]
	// [7]
}

// At makes a cursor of a step number, for a run that saved nothing else, and
// Batch loads one batch again, such as one whose loss was not a number. Use the
// options of that run: with another batch size or another number of ranks the
// step is another place, and with another seed it has other samples. A saved
// cursor would refuse another seed.
func ExampleDataLoader_At() {
	data := Func(10, func(ctx context.Context, i int) (int, error) { return i, nil })
	loader, err := New(data, List[int], Options{BatchSize: 4, Shuffle: true, Seed: 1, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	step := 4 // four steps have been taken; an epoch has three
	at := loader.At(0, step)
	fmt.Println("epoch", at.Epoch, "pos", at.Pos)
	for batch, err := range loader.Run(ctx, &at) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("step", step, batch)
		step++
	}
	step = 4 // look at its batch again
	again, err := loader.Batch(ctx, step/loader.Len(), step%loader.Len())
	fmt.Println("step", step, again, err)
	// Output:
	// epoch 1 pos 4
	// step 4 [9 2 8 0]
	// step 5 [4 3]
	// step 4 [9 2 8 0] <nil>
}

// Ranks that train together must take the same number of steps, or some of them
// wait for the others for ever. Under PadTail and DropTail Shard gives all
// ranks the same number of items, however many the source has. UnevenTail
// yields each item once: evaluate with it. Put Shard after stages that drop or
// reorder items, and before Batch.
func ExampleStream_Shard() {
	const ranks = 3
	// Ten items, but nobody knows before.
	even := Indices(Sequential(20)).Filter(func(i int) bool { return i%2 == 0 })
	names := map[Tail]string{PadTail: "pad", DropTail: "drop", UnevenTail: "uneven"}
	for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
		for rank := range ranks {
			part := even.Shard(Rank{Index: rank, Count: ranks}, tail)
			var steps [][]int
			for batch, err := range Batch(part, 2, List[int]).Epoch(context.Background(), 0) {
				if err != nil {
					log.Fatal(err)
				}
				steps = append(steps, batch)
			}
			fmt.Println(names[tail], "rank", rank, steps)
		}
	}
	// Output:
	// pad rank 0 [[0 6] [12 18]]
	// pad rank 1 [[2 8] [14 0]]
	// pad rank 2 [[4 10] [16 2]]
	// drop rank 0 [[0 6] [12]]
	// drop rank 1 [[2 8] [14]]
	// drop rank 2 [[4 10] [16]]
	// uneven rank 0 [[0 6] [12 18]]
	// uneven rank 1 [[2 8] [14]]
	// uneven rank 2 [[4 10] [16]]
}

// Bad items, full batches and several ranks: if the ranks do not take the same
// number of steps, the last ones wait for ever. Here each rank decodes only its
// own records, and drops those that it cannot decode. From a stream without an
// end it takes as many full batches as the others. That is an epoch.
func ExampleStream_Cycle_ranks() {
	texts := []string{"0", "1", "2", "three", "4", "5", "6", "7", "8", "nine"}
	records := Indices(Random(len(texts), 1)) // or Tar
	decode := func(_ context.Context, i int) (int, error) { return strconv.Atoi(texts[i]) }
	drop := func(bad *SampleError) error { return nil } // count it, and have a budget
	const ranks, steps = 3, 2
	for rank := range ranks {
		own := records.Cycle().Shard(Rank{Index: rank, Count: ranks}, UnevenTail)
		batches := Batch(Map(own, 2, decode).OnError(drop), 2, List[int]).Take(steps)
		for batch, err := range batches.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("rank", rank, batch)
		}
	}
	// Output:
	// rank 0 [2 7]
	// rank 0 [4 7]
	// rank 1 [0 1]
	// rank 1 [6 6]
	// rank 2 [5 8]
	// rank 2 [5 0]
}

// A progress bar with the loss in it, which is right after a resume, where
// Progress would count from 0 again. The cursor says how many steps have been
// taken: each moves Pos by BatchSize × ranks or, with a BatchSampler, by the
// number of ranks. The time left follows from the steps since the resume. Call
// bar in the loop body, with whatever else you want to see. PyTorch: tqdm with
// initial and set_postfix.
func ExampleProgress_loss() {
	const perStep = 2 // BatchSize × ranks
	data := Slice[float64]{5, 9, 6, 8, 7, 7, 8, 6, 9}
	loader, err := New(data, List[float64], Options{BatchSize: perStep})
	if err != nil {
		log.Fatal(err)
	}
	var clock time.Time
	now := func() time.Time { return clock } // in a program: now := time.Now

	// newBar begins a bar on a terminal, when some of all steps have been
	// taken. It is drawn at most ten times a second.
	newBar := func(w io.Writer, taken, all int) func(step int, loss float64) {
		begin, drawn := now(), time.Time{}
		return func(step int, loss float64) {
			if step < all && now().Sub(drawn) < time.Second/10 {
				return
			}
			drawn = now()
			left := drawn.Sub(begin) / time.Duration(max(1, step-taken)) * time.Duration(all-step)
			bar := strings.Repeat("#", 20*step/all) + strings.Repeat(".", 20-20*step/all)
			fmt.Fprintf(w, "\r%3d%% [%s] %d/%d, %v left, loss %-12.4g",
				100*step/all, bar, step, all, left.Round(time.Second), loss)
		}
	}

	var terminal strings.Builder // in a program os.Stderr
	var at Cursor                // the checkpoint: the cursor and
	mean := 0.0                  // the model
	train := func(steps int) {
		step := func() int { return (at.Pos + perStep - 1) / perStep }
		bar := newBar(&terminal, step(), loader.Len())
		for batch, err := range loader.Run(context.Background(), &at) {
			if err != nil {
				log.Fatal(err)
			}
			loss := 0.0
			for _, x := range batch {
				loss += (x - mean) * (x - mean) / float64(len(batch))
				mean += (x - mean) / 2
			}
			clock = clock.Add(3 * time.Second)
			bar(step(), loss)
			if steps--; steps == 0 {
				break
			}
		}
		fmt.Fprintln(&terminal)
	}
	train(2) // interrupted
	train(-1)
	shown := strings.ReplaceAll(terminal.String(), "\n", "")
	for line := range strings.SplitSeq(shown[1:], "\r") {
		fmt.Println(strings.TrimSpace(line))
	}
	// Output:
	// 20% [####................] 1/5, 12s left, loss 33.62
	// 40% [########............] 2/5, 9s left, loss 2.289
	// 60% [############........] 3/5, 6s left, loss 0.002441
	// 80% [################....] 4/5, 3s left, loss 1.629
	// 100% [####################] 5/5, 0s left, loss 5.08
}

// A stopwatch says how long the stage after it has waited for the stages before
// it.
type stopwatch struct{ items, waited atomic.Int64 }

// timed is a stage that passes its items on.
func timed[T any](source Stream[T], watch *stopwatch) Stream[T] {
	return NewStage(source, true, func(
		ctx context.Context, source Stream[T], from Cursor,
	) iter.Seq2[Item[T], error] {
		return func(yield func(Item[T], error) bool) {
			begin := time.Now()
			for item, err := range source.Items(ctx, from) {
				watch.items.Add(1)
				watch.waited.Add(int64(time.Since(begin)))
				if !yield(item, err) {
					return
				}
				begin = time.Now()
			}
		}
	})
}

// Which stage of a pipeline is slow, while it trains? Put timed in at two or
// three places, and print a line for each. The first stage from the source that
// is waited for nearly all the time is the slow one; if none is, the training
// is. Here, on some machine, the lines are
//
//	names: 200 items, waited 0 %
//	decode: 200 items, waited 99 %
//	batches: 25 items, waited 88 %
//
// so decode needs workers. The pipeline must end with a Prefetch: without it
// loading and training take turns. Stages in one goroutine add up their times.
// Copy stopwatch and timed, too, which stand before this Example.
func ExampleNewStage_slow() {
	var watches [3]stopwatch
	names := timed(Map(Indices(Sequential(200)), 0, func(_ context.Context, i int) (string, error) {
		return fmt.Sprintf("%d.png", i), nil
	}), &watches[0])
	decoded := timed(Map(names, 0, func(_ context.Context, name string) (string, error) {
		time.Sleep(100 * time.Microsecond)
		return "pixels of " + name, nil
	}), &watches[1])
	batches := timed(Batch(decoded, 8, List[string]).Prefetch(2), &watches[2])
	begin := time.Now()
	for _, err := range batches.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		time.Sleep(20 * time.Microsecond) // train
	}
	for i, name := range []string{"names", "decode", "batches"} {
		waited := float64(watches[i].waited.Load()) / float64(time.Since(begin))
		items := watches[i].items.Load()
		line := fmt.Sprintf("%s: %d items, waited %.0f %%", name, items, 100*waited)
		fmt.Println(line[:strings.Index(line, ",")])
	}
	// Output:
	// names: 200 items
	// decode: 200 items
	// batches: 25 items
}

// ## Recipes: batches for other machines
//
// A server makes the batches, and trainings elsewhere get them by HTTP, in Go
// (ExampleNewBatchFunc_served) or in Python (testdata/served.py). Batch k of an
// epoch is a pure function, so servers keep nothing that an answer depends on:
// any number of equal servers may stand behind a load balancer, and one that
// dies costs a request that is made again.

// A server of batches, for ExampleNewBatchFunc_served and for PyTorch
// (testdata/served.py). A batch is the body of a response: encode makes arrays
// of the samples, in NumPy's format, which every language reads. SIGTERM ends
// the server, when it has answered the requests under way. Put in your own
// data, encode, options and version. Change the version whenever a sample would
// be decoded otherwise, or a batch encoded: clients of this version then get
// errors instead of other data. Go's version and the machine's are in it
// because image/jpeg and floating-point sums may differ between them.
//
// A server keeps nothing from one request to the next, so nothing is lost if it
// is killed. A Get that hangs, and does not watch its context, keeps a place of
// atOnce: see ExampleFunc_hang. There is no authentication and no TLS: listen
// on localhost, or behind a proxy that has them. Copy serveBatches, serveUntil,
// appendArray and arrayHeader, too, which stand below.
func ExampleDataLoader_Batch_served() {
	data := Func(100, func(ctx context.Context, i int) (int64, error) {
		if i == 99 {
			return 0, errors.New("a truncated file")
		}
		return int64(i), nil
	})
	encode := func(dst []byte, samples []int64) ([]byte, error) {
		pixels := make([]float32, 3*len(samples))
		dst, err1 := appendArray(dst[:0], []int{len(samples), 3}, pixels)
		dst, err2 := appendArray(dst, []int{len(samples)}, samples)
		return dst, errors.Join(err1, err2)
	}
	opts := Options{BatchSize: 32, Shuffle: true, Seed: 1, DataVersion: "2026-11-24"}
	version := fmt.Sprint("1 ", runtime.Version(), " ", runtime.GOARCH)
	handler, err := serveBatches(data, encode, opts, version, runtime.GOMAXPROCS(0))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // in a program a port of your own
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ended := make(chan error) // a program calls serveUntil, and ends
	go func() { ended <- serveUntil(ctx, listener, handler) }()

	for _, path := range []string{"ready", "batch/1", "batch/2", "batch/7", "batch/x"} {
		resp, err := http.Get(fmt.Sprintf("http://%s/%s", listener.Addr(), path))
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Printf("%s: %d, %d bytes: %.50q\n", path, resp.StatusCode, len(body), body)
	}
	stop() // stands for the signal
	fmt.Println(<-ended)
	// Output:
	// ready: 200, 1 bytes: "4"
	// batch/1: 200, 896 bytes: "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False,"
	// batch/2: 500, 57 bytes: "dataloader: epoch 0, batch 2, sample 99: a truncat"
	// batch/7: 200, 288 bytes: "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False,"
	// batch/x: 400, 28 bytes: "a step is a number from 0 on"
	// <nil>
}

// serveBatches returns the handler of a server: the steps of a training at
// /batch/{step}, made of data by encode, and, at /ready, the number of steps in
// an epoch. At most atOnce batches are in memory, in the making or on their
// way; whoever comes later waits. More than one for each CPU helps if loads
// wait for a disk or a network. Batch has all of them in Worker -1, so keep
// decoders in a sync.Pool.
//
// Every answer about a batch has a tag: a hash of all that the batch depends
// on. A sampler of your own needs a String method that describes it. An
// OrderFunc is described by its length only: change version with it. A request
// with another tag in If-Match is refused (412). Other answers are 400 if step
// is not a number from 0 on, 404 if there are no samples, and 500 with the
// error's text if the batch failed.
//
// OnError and Unordered are refused. Which samples OnError drops depends on
// which server had how many errors, so that a batch would depend on the server,
// and a batch that has lost all its samples fails for ever.
func serveBatches[T any](
	data Dataset[T], encode Collate[T, []byte], opts Options, version string, atOnce int,
) (http.Handler, error) {
	if opts.OnError != nil || opts.Unordered {
		return nil, errors.New("a server has neither OnError nor Unordered")
	}
	for _, order := range []any{opts.Sampler, opts.BatchSampler} {
		if _, ok := order.(fmt.Stringer); order != nil && !ok {
			return nil, fmt.Errorf("%T needs a String method, for the tag", order)
		}
	}
	loader, err := New(data, encode, opts)
	if err != nil {
		return nil, err
	}
	tag := fmt.Sprintf(`"%x"`, sha256.Sum256(fmt.Appendf(nil, "%d %t %v %v %q %d %d %t %v %d %q",
		data.Len(), opts.Shuffle, opts.Sampler, opts.BatchSampler, opts.DataVersion, opts.Seed,
		opts.BatchSize, opts.DropLast, opts.Rank, opts.Tail, version)))

	// answer has a minute to send a response. The server's WriteTimeout would
	// count waiting and loading, too, and the deadline of the response before
	// would stay.
	answer := func(w http.ResponseWriter, status int, body []byte) error {
		c, limit := http.NewResponseController(w), time.Now().Add(time.Minute)
		c.SetWriteDeadline(limit)
		c.SetReadDeadline(limit) // of a body that may never come
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Header().Set("ETag", tag)
		w.WriteHeader(status)
		_, err := w.Write(body)
		return err
	}
	places := make(chan struct{}, max(1, atOnce))
	batch := func(ctx context.Context, w http.ResponseWriter, step int) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done(): // the client has gone away
			return
		}
		batch, err := loader.Batch(ctx, step/loader.Len(), step%loader.Len())
		if err != nil {
			answer(w, http.StatusInternalServerError, []byte(err.Error()))
			return
		}
		// The memory of a response that was cut short goes to the garbage
		// collector, because HTTP/2 may still use it.
		if answer(w, http.StatusOK, batch) == nil {
			loader.Recycle(batch)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, []byte(strconv.Itoa(loader.Len())))
	})
	mux.HandleFunc("GET /batch/{step}", func(w http.ResponseWriter, r *http.Request) {
		step, err := strconv.Atoi(r.PathValue("step"))
		switch {
		case err != nil || step < 0:
			answer(w, http.StatusBadRequest, []byte("a step is a number from 0 on"))
		case loader.Len() == 0:
			answer(w, http.StatusNotFound, []byte("there are no samples"))
		default:
			batch(r.Context(), w, step)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if match := r.Header.Get("If-Match"); match != "" && match != tag {
			answer(w, http.StatusPreconditionFailed, []byte("another order, or another version"))
			return
		}
		mux.ServeHTTP(w, r)
	}), nil
}

// serveUntil serves until ctx has ended. The requests under way then have 20
// seconds.
func serveUntil(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := server.Shutdown(limit)
	server.Close() // what is left is cut, and its client asks another server
	return err
}

// appendArray appends an array of the given shape, whose elements stand in
// parts, in NumPy's format: a header, and the elements from a multiple of 64
// bytes on. E is a type of fixed size, so int64, not int. binary.Append writes
// little-endian on every machine.
func appendArray[E any](dst []byte, shape []int, parts ...[]E) (_ []byte, err error) {
	count := 0
	for _, part := range parts {
		count += len(part)
	}
	want := 1
	for _, n := range shape {
		want *= n
	}
	if count != want {
		return dst, fmt.Errorf("the shape %d does not fit %d elements", shape, count)
	}
	header := arrayHeader[E](shape)
	begin := len(dst) + 10
	end := (begin + len(header) + 1 + 63) / 64 * 64 // of the header
	dst = append(dst, "\x93NUMPY\x01\x00"...)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(end-begin))
	dst = fmt.Appendf(dst, "%-*s\n", end-begin-1, header)
	for _, part := range parts {
		if dst, err = binary.Append(dst, binary.LittleEndian, part); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// arrayHeader describes an array as NumPy does. NumPy's letter of a type is the
// first of Go's name of it.
func arrayHeader[E any](shape []int) string {
	axes := ""
	for _, n := range shape {
		axes += strconv.Itoa(n) + ","
	}
	e := reflect.TypeFor[E]()
	return fmt.Sprintf("{'descr': '<%.1s%d', 'fortran_order': False, 'shape': (%s), }",
		e.Kind(), e.Size(), axes)
}

// cutArray cuts the first array off body, into the memory of dst.
func cutArray[E any](dst Tensor[E], body []byte) (_ Tensor[E], rest []byte, err error) {
	bad := func() (Tensor[E], []byte, error) {
		return dst, body, fmt.Errorf("no array of %v: %.100q", reflect.TypeFor[E](), body)
	}
	if len(body) < 10 {
		return bad()
	}
	end := 10 + int(binary.LittleEndian.Uint16(body[8:]))
	if len(body) < end {
		return bad()
	}
	header := string(body[10:end])
	_, axes, _ := strings.Cut(header, "'shape': (")
	axes, _, _ = strings.Cut(axes, ",)")
	dst.Shape = dst.Shape[:0]
	count := 1
	for axis := range strings.SplitSeq(axes, ",") {
		n, err := strconv.Atoi(axis)
		if err != nil || n < 0 || n > len(body) || count*n > len(body) {
			return bad()
		}
		dst.Shape = append(dst.Shape, n)
		count *= n
	}
	if !strings.HasPrefix(header, arrayHeader[E](dst.Shape)) {
		return bad()
	}
	dst.Data = slices.Grow(dst.Data[:0], count)[:count]
	n, err := binary.Decode(body[end:], binary.LittleEndian, dst.Data)
	return dst, body[end+n:], err
}

// A training whose batches come from servers, of which any number may stand
// behind one address. A sample of the loader is a step of the training, so the
// checkpoint is the step, with the servers' tag, and At resumes. Several ranks
// get the steps in turn: on rank 1 of 4 its own step 10 is the servers' step
// 41. Put in your own decode and train.
//
// A batch that the servers cannot make is a SampleError, which a loop may skip.
// Any other error ends the loop, for example if the servers have another order:
// if it could be skipped, a loop would skip every batch. Copy everything from
// the type batchClient to its method try, with newBatchClient, servedBatches,
// errServed and errRefused, and cutArray and arrayHeader, which stand above.
// (serveBatches and appendArray make the batches here.)
func ExampleNewBatchFunc_served() {
	data := Func(20, func(ctx context.Context, i int) (int64, error) {
		if i == 13 {
			return 0, errors.New("a truncated file")
		}
		return int64(i), nil
	})
	encode := func(dst []byte, samples []int64) ([]byte, error) {
		return appendArray(dst[:0], []int{len(samples)}, samples)
	}
	opts := Options{BatchSize: 4, Shuffle: true, Seed: 1}
	handler, err := serveBatches(data, encode, opts, "1", 2)
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(handler) // in a program elsewhere, or many
	defer server.Close()

	decode := func(dst Tensor[int64], body []byte) (Tensor[int64], error) {
		batch, _, err := cutArray(dst, body) // a second array follows in the rest
		return batch, err
	}
	type checkpoint struct {
		Sum  int64 // the weights
		Step int
		Tag  string
	}
	// train resumes a checkpoint, and goes on until step last.
	train := func(c checkpoint, last int) checkpoint {
		ctx, stop := context.WithCancelCause(context.Background())
		defer stop(nil)
		client := newBatchClient(server.URL, c.Tag, 4, stop)
		client.pause = time.Millisecond // only here
		loader, err := servedBatches(ctx, client, decode, Options{Workers: 4})
		if err != nil {
			log.Fatal(err)
		}
		c.Tag = client.tag
		at := loader.At(0, c.Step)
		for batch, err := range loader.Run(ctx, &at) {
			switch {
			case errors.As(err, new(*SampleError)):
				fmt.Println("skipped: step", c.Step, errors.Is(err, errServed))
			case err != nil:
				log.Fatal(err)
			default:
				for _, x := range batch.Data {
					c.Sum += x
				}
				fmt.Println("step", c.Step, batch.Data)
				loader.Recycle(batch)
			}
			if c.Step++; c.Step == last {
				break
			}
		}
		return c
	}
	half := train(checkpoint{}, 3)
	rest := train(half, 6)
	fmt.Println("sum", rest.Sum)
	// Output:
	// step 0 [5 15 1 17]
	// step 1 [19 7 10 11]
	// step 2 [4 9 0 2]
	// skipped: step 3 true
	// step 4 [18 6 12 8]
	// step 5 [18 1 9 8]
	// sum 180
}

// A batchClient gets batches from the servers behind an address.
type batchClient struct {
	url   string
	tag   string                  // that the servers must have
	steps int                     // in an epoch, known since servedBatches
	stop  context.CancelCauseFunc // ends the loop that waits for batches

	http  *http.Client
	pause time.Duration // before the second attempt at a request; then twice, three times this
}

var (
	errRefused = errors.New("the server refuses")               // also if asked again
	errServed  = errors.New("the server cannot make the batch") // the only error to skip
)

// newBatchClient returns a client that makes up to workers requests at once. If
// tag is empty, that of the first server to answer is taken. stop is that of
// the loop's context.
func newBatchClient(
	url, tag string, workers int, stop context.CancelCauseFunc,
) *batchClient {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = workers // the default closes all but two after each request
	transport.DisableCompression = true
	return &batchClient{url, tag, 0, stop, &http.Client{Transport: transport}, time.Second}
}

// servedBatches returns a loader of the batches of a client's servers, whose
// steps are its samples. Of opts set only Workers, Prefetch and Rank. The
// number of steps is larger than any training needs: the cursors contain it, so
// it must never change.
func servedBatches[B any](
	ctx context.Context, c *batchClient, decode func(dst B, body []byte) (B, error), opts Options,
) (*DataLoader[B], error) {
	bodies := sync.Pool{New: func() any { return new(bytes.Buffer) }}
	var ready bytes.Buffer
	err := c.get(ctx, "/ready", &ready)
	if err != nil {
		return nil, err
	}
	if c.steps, err = strconv.Atoi(ready.String()); err != nil {
		return nil, err
	}
	load := func(ctx context.Context, dst B, steps []int) (B, error) {
		body := bodies.Get().(*bytes.Buffer)
		defer bodies.Put(body)
		err := c.get(ctx, fmt.Sprint("/batch/", steps[0]), body)
		if err == nil {
			dst, err = decode(dst, body.Bytes())
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, errServed) {
			c.stop(err)
		}
		return dst, err
	}
	return NewBatchFunc(1_000_000_000, load, opts)
}

// get makes up to ten attempts at a request, with pauses of 1 to 9 seconds: 45
// in all, in which a server can start anew. After a failure it takes another
// connection, which may lead to another server.
func (c *batchClient) get(ctx context.Context, path string, body *bytes.Buffer) (err error) {
	for attempt := range 10 {
		select {
		case <-time.After(c.pause * time.Duration(attempt)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err = c.try(ctx, path, body)
		if err == nil || errors.Is(err, errRefused) || errors.Is(err, errServed) && attempt == 2 {
			return err
		}
		c.http.CloseIdleConnections()
	}
	return err
}

// try makes a request, which may take a minute: waiting, loading and reading. A
// response without the tag is not from a server, but from something before it.
// A response that was cut short is an error of ReadFrom, as it has a length.
func (c *batchClient) try(ctx context.Context, path string, body *bytes.Buffer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", c.url+path, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	if c.tag != "" {
		request.Header.Set("If-Match", c.tag)
	}
	resp, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body.Reset()
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	tag := resp.Header.Get("ETag")
	if c.tag == "" && resp.StatusCode == http.StatusOK { // of ready, before any batch
		c.tag = tag
	}
	ours := tag != "" && tag == c.tag
	if ours && resp.StatusCode == http.StatusOK {
		return nil
	}
	text := fmt.Sprintf("%s: %s: %.1000s", path, resp.Status, body.Bytes())
	switch {
	case tag != "" && resp.StatusCode/100 == 4:
		return fmt.Errorf("%w: %s", errRefused, text)
	case ours && resp.StatusCode == http.StatusInternalServerError:
		return fmt.Errorf("%w: %s", errServed, text)
	}
	return fmt.Errorf("no server answers: %s", text)
}

// ## tar.go: shards

// Tar reads the records of shards. A truncated shard yields its whole records
// and then one error, and the next shard follows. Rest says that this error
// stands for more than one record: whoever counts errors may want to stop
// there.
func ExampleTar() {
	var shard bytes.Buffer
	w := NewTarWriter(&shard)
	for label, name := range []string{"cat", "dog"} {
		files := []File{
			{Name: "txt", Data: []byte("I am a " + name)},
			{Name: "cls", Data: []byte(strconv.Itoa(label))},
		}
		if err := w.Write(Record{Key: name, Files: files}); err != nil {
			log.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	truncated, whole := filepath.Join(dir, "train-0.tar"), filepath.Join(dir, "train-1.tar")
	if err := os.WriteFile(truncated, shard.Bytes()[:3000], 0o666); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(whole, shard.Bytes(), 0o666); err != nil {
		log.Fatal(err)
	}

	shards := []string{truncated, whole} // Expand("train-{0..1}.tar") lists many
	records, err := Tar(shards, TarOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		var bad *SampleError
		var damage *TarError
		if errors.As(err, &bad) && errors.As(err, &damage) {
			fmt.Printf("skipped a record of %s at %s; the rest too: %t\n",
				filepath.Base(damage.Shard), damage.Entry, damage.Rest)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s %s\n", r.Key, r.Get("cls"), r.Get("txt"))
	}
	// Output:
	// cat: 0 I am a cat
	// skipped a record of train-0.tar at dog.cls; the rest too: true
	// cat: 0 I am a cat
	// dog: 1 I am a dog
}

// OpenTar reads the records of shards by index, so a loader can shuffle all of
// them. (tarEntries and must make the shards here.)
func ExampleOpenTar() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train.tar")
	shard := tarEntries("cat.txt=I am a cat", "cow.txt=I am a cow", "dog.txt=I am a dog")
	if err := os.WriteFile(name, shard, 0o666); err != nil {
		log.Fatal(err)
	}

	var data *TarDataset
	data, err = OpenTar(name)
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	loader, err := New(data, List[Record], Options{
		BatchSize: 2, Shuffle: true, Seed: 3, Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		for _, r := range batch {
			fmt.Printf("%s: %s\n", r.Key, r.Get("txt"))
		}
	}
	// Output:
	// dog: I am a dog
	// cow: I am a cow
	// cat: I am a cat
}

// A TarWriter writes records to a shard. It refuses a record that would be read
// back as another.
func ExampleTarWriter() {
	var shard bytes.Buffer
	var w *TarWriter = NewTarWriter(&shard)
	files := []File{{Name: "txt", Data: []byte("meow")}, {Name: "cls", Data: []byte("0")}}
	fmt.Println(w.Write(Record{Key: "pets/cat", Files: files}))
	fmt.Println(w.Write(Record{Key: "pets/cat.2", Files: files}))
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	for r := tar.NewReader(&shard); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(h.Name, h.Size)
	}
	// Output:
	// <nil>
	// dataloader: TarWriter: record "pets/cat.2": file "pets/cat.2.cls" would be read as field "2.cls" of record "pets/cat"
	// pets/cat.cls 1
	// pets/cat.txt 4
}

// An Opener reads shards from any other store, here a file system in memory.
// (tarEntries and must make the shards here.)
func ExampleOpener() {
	shard := tarEntries("cat.txt=meow") // a tar file with one record
	store := fstest.MapFS{"bucket/train.tar": {Data: shard}}
	var open Opener = func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		object, ok := strings.CutPrefix(name, "mem://")
		if !ok {
			return OpenShard(ctx, name, offset)
		}
		file, err := store.Open(object)
		if err != nil {
			return nil, err
		}
		_, err = file.(io.Seeker).Seek(offset, io.SeekStart)
		return file, err
	}
	records, err := Tar([]string{"mem://bucket/train.tar"}, TarOptions{Open: open})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", r.Key, r.Get("txt"))
	}
	// Output: cat: meow
}

// A roundTrip is a function as an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A store that wants a token in a header: set http.DefaultClient.Transport
// before the first loop. Then OpenShard retries and resumes as ever, and each
// request has the token of that moment. Only one scheme and host get it,
// because stores redirect to others. Copy the type roundTrip, too, which stands
// before this Example.
func ExampleOpenShard_bearerToken() {
	var leaked string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked = r.Header.Get("Authorization")
		shard := NewTarWriter(w)
		err := shard.Write(Record{Key: "cat", Files: []File{{Name: "txt"}}})
		if err := errors.Join(err, shard.Close()); err != nil {
			fmt.Println(err)
		}
	}))
	defer other.Close()
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, other.URL, http.StatusFound)
	}))
	defer store.Close()

	origin := store.URL // such as "https://huggingface.co"
	token := "secret"   // os.Getenv("HF_TOKEN")
	http.DefaultClient.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.URL.Scheme+"://"+r.URL.Host == origin {
			r = r.Clone(r.Context()) // a RoundTripper must not change its request
			r.Header.Set("Authorization", "Bearer "+token)
		}
		return http.DefaultTransport.RoundTrip(r)
	})
	defer func() { http.DefaultClient.Transport = nil }()
	records, err := Tar([]string{store.URL + "/train-000.tar"}, TarOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		fmt.Printf("%s %v, the other host has got %q\n", r.Key, err, leaked)
	}
	// Output: cat <nil>, the other host has got ""
}

// Records of remote tar files by index: a data set for Shuffle, Weighted or
// Subset, whose cursors fit any number of ranks. Nothing is downloaded before,
// but each record costs a request, so Tar is much faster. At 20 ms to the first
// byte a worker loads 40 records a second. The tar files are those of a
// TarWriter, not compressed. Their index is made before the upload: where each
// record is, and a checksum of its bytes and of the header behind them, with
// which the next record begins. So a record that was replaced, or has another
// file now, is an error. ExampleFunc_retry asks again. (tarEntries and must
// make the shards here.)
func ExampleFunc_remoteRecords() {
	shard := tarEntries("cat.txt=purr", "cow.txt=moo") // a tar file with two records
	folder := fstest.MapFS{"a.tar": {Data: shard}}

	type place struct {
		Shard, Key string
		Begin, End int64
		Sum        uint32
	}
	var index []place // save it as JSON
	for _, name := range []string{"a.tar"} {
		all := folder[name].Data // or os.ReadFile
		begin := int64(0)
		stored := bytes.NewReader(all)
		for t := tar.NewReader(stored); ; {
			h, err := t.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				log.Fatal(err)
			}
			dir, base := path.Split(h.Name)
			base, _, _ = strings.Cut(base, ".")
			if begin == 0 || index[len(index)-1].Key != dir+base {
				index = append(index, place{Shard: name, Key: dir + base, Begin: begin})
			}
			data := stored.Size() - int64(stored.Len()) // where the file's data begin
			begin = data + (h.Size+511)/512*512         // whole blocks
			p := &index[len(index)-1]
			p.End = begin
			p.Sum = crc32.ChecksumIEEE(all[p.Begin:min(begin+512, stored.Size())])
		}
	}

	store := httptest.NewServer(http.FileServerFS(folder))
	defer store.Close()
	// Each worker keeps its connection, where by default all but two would
	// connect anew for each record.
	const workers = 64
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: workers}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	records := Func(len(index), func(ctx context.Context, i int) (Record, error) {
		p := index[i]
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, store.URL+"/"+p.Shard, nil)
		if err != nil {
			return Record{}, err
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.Begin, p.End+511))
		resp, err := client.Do(req)
		if err != nil {
			return Record{}, err
		}
		defer resp.Body.Close()
		// A server that knows no ranges would send all.
		got, err := io.ReadAll(io.LimitReader(resp.Body, p.End-p.Begin+513))
		if err == nil && crc32.ChecksumIEEE(got) != p.Sum {
			err = errors.New("other bytes than those of the index")
		}
		if err != nil {
			return Record{}, fmt.Errorf("%s of %s: %s: %w", p.Key, p.Shard, resp.Status, err)
		}
		r := Record{Key: p.Key, Shard: p.Shard}
		for t := tar.NewReader(bytes.NewReader(got[:p.End-p.Begin])); ; {
			h, err := t.Next()
			if err == io.EOF {
				return r, nil
			}
			if err != nil {
				return r, err
			}
			data, err := io.ReadAll(t)
			if err != nil {
				return r, err
			}
			r.Files = append(r.Files, File{Name: h.Name[len(p.Key)+1:], Data: data})
		}
	})
	for i := range records.Len() { // or a loader with that number of Workers
		r, err := records.Get(context.Background(), i)
		fmt.Printf("%s: %s %v\n", r.Key, r.Get("txt"), err)
	}
	// Output:
	// cat: purr <nil>
	// cow: moo <nil>
}

// Expand lists the names of shards.
func ExampleExpand() {
	shards, err := Expand("https://example.org/{train,valid}-{08..10}.tar")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range shards {
		fmt.Println(name)
	}
	// Output:
	// https://example.org/train-08.tar
	// https://example.org/train-09.tar
	// https://example.org/train-10.tar
	// https://example.org/valid-08.tar
	// https://example.org/valid-09.tar
	// https://example.org/valid-10.tar
}

// ## Recipes: files and images

// Decode makes of each file what its extension says. The files come from a
// folder or from a tar shard.
func ExampleDecode() {
	decode := func(_ context.Context, f File) (any, error) { return Decode(f.Name, f.Data) }
	open := func(name string) (none Stream[any], err error) {
		if strings.HasSuffix(name, ".tar") {
			records, err := Tar([]string{name}, TarOptions{})
			if err != nil {
				return none, err
			}
			lists := Map(records, 0, func(_ context.Context, r Record) ([]File, error) {
				return r.Files, nil
			})
			return Map(Unbatch(lists), 2, decode), nil
		}
		files, err := Files(os.DirFS(name))
		if err != nil {
			return none, err
		}
		return Map(Indices(Sequential(files.Len())), 2, Transform(files, decode).Get), nil
	}

	files := []File{
		{Name: "cls", Data: []byte("0")},
		{Name: "json", Data: []byte(`{"legs": 4}`)},
		{Name: "txt", Data: []byte("meow")},
	}
	dir, err := os.MkdirTemp("", "pets")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shard, folder := filepath.Join(dir, "pets.tar"), filepath.Join(dir, "pets")
	var packed bytes.Buffer
	w := NewTarWriter(&packed)
	if err := w.Write(Record{Key: "cat", Files: files}); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(shard, packed.Bytes(), 0o666); err != nil {
		log.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o777); err != nil {
		log.Fatal(err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(folder, "cat."+f.Name), f.Data, 0o666); err != nil {
			log.Fatal(err)
		}
	}
	for _, name := range []string{shard, folder} {
		values, err := open(name)
		if err != nil {
			log.Fatal(err)
		}
		for value, err := range values.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%T %v\n", value, value)
		}
	}
	// Output:
	// int 0
	// map[string]interface {} map[legs:4]
	// string meow
	// int 0
	// map[string]interface {} map[legs:4]
	// string meow
}

// A .npz file of NumPy is a zip archive with an .npy file for each array, and
// zip.OpenReader's result is an fs.FS. All of it is read into memory, and zip
// checks its sums, so a damaged file is an error before the training. float16
// becomes float32. The elements' type is that of the Tensor. (npy is only for
// the file here.)
func ExampleDecode_npz() {
	var file bytes.Buffer // as np.savez("train.npz", x=x, y=y) writes it
	w := zip.NewWriter(&file)
	for name, array := range map[string]string{
		"x.npy": npy(1, "'<f2'", "False", "(3, 2)", "\x00\x00\x008\x00<\x00>\x00@\x00\xc0"),
		"y.npy": npy(1, "'<i8'", "False", "(3,)", "\x07"+strings.Repeat("\x00", 23)),
	} {
		entry, err := w.Create(name)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := io.WriteString(entry, array); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	archive, err := zip.NewReader(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		log.Fatal(err)
	}

	arrays := map[string]any{}
	for _, name := range []string{"x.npy", "y.npy"} {
		data, err := fs.ReadFile(archive, name)
		if err != nil {
			log.Fatal(err)
		}
		if arrays[name], err = Decode(name, data); err != nil {
			log.Fatal(err)
		}
	}
	x, isFloat := arrays["x.npy"].(Tensor[float32])
	y, isInt := arrays["y.npy"].(Tensor[int64])
	if !isFloat || !isInt {
		log.Fatalf("a %T and a %T", arrays["x.npy"], arrays["y.npy"])
	}
	features, err1 := Rows(x)
	labels, err2 := Rows(y)
	if err := errors.Join(err1, err2); err != nil {
		log.Fatal(err)
	}
	data, err := Pairs(features, labels)
	if err != nil {
		log.Fatal(err)
	}
	for i := range data.Len() {
		fmt.Println(data.Get(context.Background(), i))
	}
	// Output:
	// {{[0 0.5] [2]} {[7] []}} <nil>
	// {{[1 1.5] [2]} {[0] []}} <nil>
	// {{[2 -2] [2]} {[0] []}} <nil>
}

// ImageTensor makes a sample of an image, and Stack a batch of samples.
// Augmentation works on the image or on the tensor: this one mirrors half of
// the images.
func ExampleImageTensor() {
	first, second := image.NewNRGBA(image.Rect(0, 0, 2, 1)), image.NewGray(image.Rect(0, 0, 2, 1))
	first.Set(0, 0, color.NRGBA{255, 51, 0, 255})
	second.Set(1, 0, color.White)

	images := Slice[image.Image]{first, second}
	type tensor = Tensor[float32]
	samples := Transform(images, func(ctx context.Context, img image.Image) (tensor, error) {
		t := ImageTensor(tensor{}, img)
		if Rand(ctx).IntN(2) == 1 {
			for row := range slices.Chunk(t.Data, t.Shape[2]) {
				slices.Reverse(row)
			}
		}
		return t, nil
	})
	loader, err := New(samples, Stack[float32], Options{BatchSize: 2, Seed: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Shape, "images, planes, rows, columns")
		for data := range slices.Chunk(batch.Data, 6) {
			fmt.Println("red", data[0:2], "green", data[2:4], "blue", data[4:6])
		}
	}
	// Output:
	// [2 3 1 2] images, planes, rows, columns
	// red [0 1] green [0 0.2] blue [0 0]
	// red [0 1] green [0 1] blue [0 1]
}

// Images in a folder for each class become batches: Folder lists them,
// Transform decodes them, and Stack puts them into one tensor. (digits and must
// make the files here.)
func Example_imageFolder() {
	fsys := digits("train") // or os.DirFS("train")
	files, classes, err := Folder(fsys, "**/*.png")
	if err != nil {
		log.Fatal(err)
	}
	type labelled = Pair[Tensor[float32], int]
	images := Transform(files, func(ctx context.Context, f Pair[string, int]) (labelled, error) {
		file, err := fsys.Open(f.First)
		if err != nil {
			return labelled{}, err
		}
		defer file.Close()
		img, _, err := image.Decode(file) // of the formats that are imported, such as image/png
		if err != nil {
			return labelled{}, fmt.Errorf("%s: %w", f.First, err)
		}
		return labelled{First: ImageTensor(Tensor[float32]{}, img), Second: f.Second}, nil
	})
	loader, err := New(images, CollatePair(Stack[float32], List[int]), Options{
		BatchSize: 64, Shuffle: true, Workers: runtime.NumCPU(),
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(classes, batch.First.Shape, len(batch.Second))
		break
	}
	// Output: [0 1 2 3 4 5 6 7 8 9] [64 3 16 16] 64
}

// Images of different sizes: the middle square of each is scaled to 16 × 16, so
// that Stack can make a batch of them. The scaling takes the nearest pixel; for
// photographs put the area or bilinear scaling of your choice in its place.
func Example_imageSizes() {
	photos := Func(10, func(_ context.Context, i int) (image.Image, error) {
		return image.NewGray(image.Rect(0, 0, 20+i, 40-2*i)), nil // open and decode
	})
	const size = 16
	squares := Transform(photos, func(_ context.Context, img image.Image) (Tensor[float32], error) {
		b := img.Bounds()
		side := min(b.Dx(), b.Dy())
		left := b.Min.X + (b.Dx()-side)/2
		top := b.Min.Y + (b.Dy()-side)/2
		middle := func(i int) int { return (2*i + 1) * side / (2 * size) } // of scaled pixel i
		scaled := image.NewRGBA(image.Rect(0, 0, size, size))
		for y := range size {
			for x := range size {
				scaled.Set(x, y, img.At(left+middle(x), top+middle(y)))
			}
		}
		return ImageTensor(Tensor[float32]{}, scaled), nil
	})
	loader, err := New(squares, Stack[float32], Options{BatchSize: 4, Shuffle: true, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Shape)
		loader.Recycle(batch)
	}
	// Output:
	// [4 3 16 16]
	// [4 3 16 16]
	// [2 3 16 16]
}

const imageSide = 224

// The mean and standard deviation of each color in ImageNet.
var colorMean = [3]float32{0.485, 0.456, 0.406}

var colorStd = [3]float32{0.229, 0.224, 0.225}

// normalised[c][v] is the value v of color c, from 0 to 1, minus the mean and
// divided by the standard deviation.
var normalised = func() (table [3][256]float32) {
	for c := range table {
		for v := range table[c] {
			table[c][v] = (float32(v)/255 - colorMean[c]) / colorStd[c]
		}
	}
	return table
}()

// augment writes a sample for training into dst, whose shape is [3 224 224]: a
// part of a photograph, which must lie in its bounds, is scaled by bilinear
// interpolation, mirrored in half of all cases, and normalised. Transparent
// pixels count as black. Scaling to less than half skips pixels, so store large
// photographs smaller. torchvision: RandomResizedCrop, RandomHorizontalFlip,
// ToTensor and Normalize.
//
// JPEG files take a third of the time with testdata/libjpeg.go.txt, which
// decodes only the part, and scales large ones. The random numbers stay the
// same. Each goroutine has a Decoder, such as one from a sync.Pool:
//
//	config, err := jpeg.DecodeConfig(bytes.NewReader(data))
//	part := randomPart(rng, image.Rect(0, 0, config.Width, config.Height))
//	photo, _, err := decoder.DecodePart(data, part, imageSide)
//	augment(rng, dst, photo, photo.Bounds())
//
// With NewBatchFunc, dst is the sample's place in the batch, so that Stack
// copies nothing. That saves a seventh of the time with the adapter, and costs
// what a Get has: the Rand of NewBatchFunc is the batch's, one generator for
// the whole batch, so the numbers of a sample depend on the samples before it,
// and a photograph that cannot be decoded fails the batch.
func augment(rng *rand.Rand, dst []float32, photo image.Image, part image.Rectangle) {
	pixels, ok := photo.(*image.RGBA)
	if !ok {
		pixels = image.NewRGBA(part)
		draw.Draw(pixels, part, photo, part.Min, draw.Src)
	}
	pixels = pixels.SubImage(part).(*image.RGBA)
	// between says between which two of n rows the middle of each scaled row
	// lies, and how far from the first; so for columns.
	type place struct {
		first, second int
		share         float32
	}
	between := func(n int) (places [imageSide]place) {
		for i := range places {
			x := min(max((float32(i)+0.5)*float32(n)/imageSide-0.5, 0), float32(n-1))
			places[i] = place{int(x), min(int(x)+1, n-1), x - float32(int(x))}
		}
		return places
	}
	rows, columns := between(part.Dy()), between(part.Dx())
	if rng.IntN(2) == 1 {
		slices.Reverse(columns[:])
	}
	const area = imageSide * imageSide
	red, green, blue := &normalised[0], &normalised[1], &normalised[2]
	line := make([][4]float32, part.Dx()) // of three colors: four are a power of two
	for i, row := range rows {
		above, below := pixels.Pix[row.first*pixels.Stride:], pixels.Pix[row.second*pixels.Stride:]
		for x := range line {
			a, b, mean := above[4*x:][:3], below[4*x:][:3], &line[x]
			mean[0] = blend(red[a[0]], red[b[0]], row.share)
			mean[1] = blend(green[a[1]], green[b[1]], row.share)
			mean[2] = blend(blue[a[2]], blue[b[2]], row.share)
		}
		scaled := dst[i*imageSide:]
		for x, column := range columns {
			a, b := &line[column.first], &line[column.second]
			scaled[x] = blend(a[0], b[0], column.share)
			scaled[area+x] = blend(a[1], b[1], column.share)
			scaled[2*area+x] = blend(a[2], b[2], column.share)
		}
	}
}

// blend returns the mean of a and b, in which b has the given share.
func blend(a, b, share float32) float32 { return a + share*(b-a) }

// randomPart draws a part of r that has 8 % to 100 % of its area, and a ratio
// of width to height from 3/4 to 4/3. If r is very wide or high, it is the
// middle.
func randomPart(rng *rand.Rand, r image.Rectangle) image.Rectangle {
	for range 10 {
		area := float64(r.Dx()*r.Dy()) * (0.08 + 0.92*rng.Float64())
		ratio := math.Pow(4.0/3, 2*rng.Float64()-1) // as often wide as high
		w, h := int(math.Round(math.Sqrt(area*ratio))), int(math.Round(math.Sqrt(area/ratio)))
		if 0 < w && w <= r.Dx() && 0 < h && h <= r.Dy() {
			return image.Rect(0, 0, w, h).Add(r.Min).Add(image.Pt(rng.IntN(r.Dx()-w+1), rng.IntN(r.Dy()-h+1)))
		}
	}
	w, h := min(r.Dx(), r.Dy()*4/3), min(r.Dy(), r.Dx()*4/3)
	return image.Rect(0, 0, w, h).Add(r.Min).Add(image.Pt((r.Dx()-w)/2, (r.Dy()-h)/2))
}

// The usual augmentation of photographs for training, which the function
// augment above makes. Rand draws the same parts for any number of workers, and
// others in each epoch. Put in your own photos and numbers. For evaluation crop
// the middle, and do not mirror. Here red is the column, blue the column from
// the right and green the row, so the values of a sample tell where it comes
// from. Copy the functions and constants before this Example, too, from
// imageSide, colorMean and colorStd over normalised and blend to randomPart.
func Example_imageAugmentation() {
	heights := []int{200, 10}
	// Open and decode a photograph.
	photos := Func(len(heights), func(_ context.Context, i int) (image.Image, error) {
		var img draw.Image = image.NewRGBA(image.Rect(0, 0, 250, heights[i]))
		if i == 1 {
			img = image.NewNRGBA(img.Bounds())
		}
		for y := range heights[i] {
			for x := range 250 {
				img.Set(x, y, color.RGBA{uint8(x), uint8(y), uint8(255 - x), 255})
			}
		}
		return img, nil
	})
	type sample = Tensor[float32]
	samples := Transform(photos, func(ctx context.Context, photo image.Image) (sample, error) {
		rng, dst := Rand(ctx), make([]float32, 3*imageSide*imageSide)
		augment(rng, dst, photo, randomPart(rng, photo.Bounds()))
		return sample{dst, []int{3, imageSide, imageSide}}, nil
	})
	for _, run := range []struct{ epoch, workers int }{{0, 0}, {0, 3}, {1, 3}} {
		opts := Options{BatchSize: 2, Seed: 1, Workers: run.workers}
		loader, err := New(samples, Stack[float32], opts)
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), run.epoch) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("epoch", run.epoch, "workers", run.workers, "shape", batch.Shape)
			for t := range slices.Chunk(batch.Data, 3*imageSide*imageSide) {
				value := func(c, y, x int) float32 {
					v := t[(c*imageSide+y)*imageSide+x]
					return (v*colorStd[c] + colorMean[c]) * 255
				}
				const middle, last = imageSide / 2, imageSide - 1
				fmt.Printf("columns %.1f, %.1f … %.1f, ",
					value(0, 0, 0), value(0, 9, middle), 255-value(2, 9, last))
				fmt.Printf("rows %.1f, %.1f … %.1f\n",
					value(1, 0, 0), value(1, middle, 9), value(1, last, 0))
			}
			loader.Recycle(batch)
		}
	}
	// Output:
	// epoch 0 workers 0 shape [2 3 224 224]
	// columns 221.0, 113.0 … 6.0, rows 5.0, 98.4 … 191.0
	// columns 118.0, 124.0 … 130.0, rows 0.0, 4.5 … 9.0
	// epoch 0 workers 3 shape [2 3 224 224]
	// columns 221.0, 113.0 … 6.0, rows 5.0, 98.4 … 191.0
	// columns 118.0, 124.0 … 130.0, rows 0.0, 4.5 … 9.0
	// epoch 1 workers 3 shape [2 3 224 224]
	// columns 158.0, 108.8 … 60.0, rows 10.0, 67.3 … 124.0
	// columns 118.0, 124.0 … 130.0, rows 0.0, 4.5 … 9.0
}

// Tar shards through a pipeline: they come in another order each epoch, their
// records are shuffled, decoded by eight goroutines, and made into batches
// ahead of the loop. What cannot be loaded is dropped behind Shuffle, which
// counts items at a resume. A failed item is a record, or the rest of a shard,
// whose connection may have broken: TarError.Rest tells them apart, and each
// has a budget of its own. For many shards Expand lists the names, which may be
// addresses. (tarEntries and must make the shards here.)
func Example_tarPipeline() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train-000.tar")
	var files []string // with their content
	for i := range 100 {
		files = append(files, fmt.Sprintf("%03d.cls=%d", i, i%10))
	}
	if err := os.WriteFile(name, tarEntries(append(files, "100.cls=seven")...), 0o666); err != nil {
		log.Fatal(err)
	}

	items, shards := 0, 0 // that were dropped
	skip := func(bad *SampleError) error {
		var broken *TarError
		if errors.As(bad, &broken) && broken.Rest {
			shards++
		} else {
			items++
		}
		if items > 10 || shards > 1 {
			return bad
		}
		return nil
	}
	records, err := Tar([]string{name}, TarOptions{Shuffle: true, Seed: 1})
	if err != nil {
		log.Fatal(err)
	}
	labels := Map(records.Shuffle(1000, 2), 8, func(ctx context.Context, r Record) (int, error) {
		label, err := strconv.Atoi(string(r.Get("cls")))
		if err != nil {
			return 0, fmt.Errorf("record %s of %s: %w", r.Key, r.Shard, err)
		}
		return label, nil
	}).OnError(skip)
	batches := Batch(labels, 32, List[int]).Prefetch(2)

	var at Cursor // resumes after any batch
	for batch, err := range batches.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(at.Pos, len(batch), batch[:4])
	}
	fmt.Println("dropped:", items, "items, and the rest of", shards, "shards")
	// Output:
	// 33 32 [2 4 8 5]
	// 65 32 [9 2 3 6]
	// 97 32 [7 7 0 7]
	// 101 4 [8 3 2 5]
	// dropped: 1 items, and the rest of 0 shards
}

// The fastest way from a shard to batches of images. Records are shuffled and
// batched as they are stored. A Map decodes whole batches, each image straight
// into its place, in memory that the loop gives back. With Batch(images, size,
// Stack) each image would have memory of its own, and so would each batch.
//
// Map has up to 8 × workers batches in flight, which is much for large ones; a
// loader with OpenTar and NewBatchFunc has Workers × Prefetch. A record that
// fails fails its batch, unless decode leaves it out. Rand in decode is the
// batch's. (tarEntries and must make the shard here.)
func ExampleMap_decodedBatches() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train-000.tar")
	var files []string // with their content
	for i := range 5 {
		img, file := image.NewGray(image.Rect(0, 0, 4, 2)), new(bytes.Buffer)
		img.Pix[0] = uint8(51 * i)
		if err := png.Encode(file, img); err != nil {
			log.Fatal(err)
		}
		files = append(files, fmt.Sprintf("%d.png=%s", i, file))
	}
	if err := os.WriteFile(name, tarEntries(files...), 0o666); err != nil {
		log.Fatal(err)
	}
	records, err := Tar([]string{name}, TarOptions{Shuffle: true})
	if err != nil {
		log.Fatal(err)
	}

	const workers, pixels = 2, 3 * 2 * 4
	free := make(chan Tensor[float32], 8*workers+1) // batches that were given back
	decode := func(_ context.Context, records []Record) (batch Tensor[float32], err error) {
		select {
		case batch = <-free:
		default: // more batches are in flight than ever before
		}
		size := len(records) * pixels
		batch.Data = slices.Grow(batch.Data[:0], size)[:size]
		batch.Shape = append(batch.Shape[:0], len(records), 3, 2, 4)
		for k, r := range records {
			img, err := png.Decode(bytes.NewReader(r.Get("png")))
			if err == nil && img.Bounds().Size() != image.Pt(4, 2) {
				err = fmt.Errorf("its size is %v", img.Bounds().Size())
			}
			if err != nil {
				return batch, fmt.Errorf("record %s of %s: %w", r.Key, r.Shard, err)
			}
			ImageTensor(Tensor[float32]{Data: batch.Data[k*pixels:][:pixels]}, img) // or augment
		}
		return batch, nil
	}
	encoded := Batch(records.Shuffle(1000, 1), 2, List[Record])
	for batch, err := range Map(encoded, workers, decode).Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Shape, batch.Data[0]) // train
		select {
		case free <- batch:
		default:
		}
	}
	// Output:
	// [2 3 2 4] 0.8
	// [2 3 2 4] 0.4
	// [1 3 2 4] 0
}

// Photographs that were decoded once, into one file of pixels: red, green, blue
// and alpha, a byte each, all of one size. An epoch decodes nothing: it takes a
// tenth of the time that image/jpeg takes, and a third of libjpeg-turbo's. But
// the file is some 15 times as large as JPEG files. If it is mapped, it may be
// larger than the memory. augment reads the part that it uses straight from the
// file, and writes the sample straight into its batch. Copy mapped, and all
// from imageSide, colorMean and colorStd over normalised, augment and blend to
// randomPart, too.
func ExampleNewBatchFunc_pixels() {
	dir, err := os.MkdirTemp("", "pixels")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train.rgba")
	const width, height, size = 32, 24, 4 * 32 * 24
	var content []byte
	for i := range 5 { // once, from photographs that were scaled to this size
		photo := image.NewRGBA(image.Rect(0, 0, width, height))
		gray := image.NewUniform(color.Gray{uint8(50 * i)})
		draw.Draw(photo, photo.Rect, gray, image.Point{}, draw.Src)
		content = append(content, photo.Pix...)
	}
	if err := os.WriteFile(name, content, 0o666); err != nil {
		log.Fatal(err)
	}

	data, err := mapped(name)
	if err != nil {
		log.Fatal(err)
	}
	const sample = 3 * imageSide * imageSide
	load := func(
		ctx context.Context, dst Tensor[float32], indices []int,
	) (Tensor[float32], error) {
		dst.Data = slices.Grow(dst.Data[:0], len(indices)*sample)[:len(indices)*sample]
		dst.Shape = append(dst.Shape[:0], len(indices), 3, imageSide, imageSide)
		for k, i := range indices {
			rect := image.Rect(0, 0, width, height)
			photo := &image.RGBA{Pix: data[i*size:][:size], Stride: 4 * width, Rect: rect}
			part := randomPart(Rand(ctx), rect)
			augment(Rand(ctx), dst.Data[k*sample:][:sample], photo, part)
		}
		return dst, nil
	}
	if len(data)%size != 0 {
		log.Fatalf("%s has %d bytes, which are no whole photographs", name, len(data))
	}
	opts := Options{BatchSize: 3, Shuffle: true, Workers: 2}
	loader, err := NewBatchFunc(len(data)/size, load, opts)
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v %.2f\n", batch.Shape, batch.Data[0]) // train
		loader.Recycle(batch)
	}
	// Output:
	// [3 3 224 224] -1.26
	// [2 3 224 224] 0.45
}

// A model learns from the stream of tar shards: records that are shuffled,
// decoded by several goroutines, and batched. Its cursor resumes in the middle
// of a shard, of the shuffle and of an epoch. Then the same shards are a data
// set, which tests what was learned. (scatterDigits, digits, tarEntries and
// must make the shards here.)
func Example_trainingFromTar() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shards := scatterDigits(filepath.Join(dir, "train-{00..05}.tar"))

	// A digit is an image of the shape [3 16 16], and the digit that it shows.
	type digit = Pair[Tensor[float32], int]
	decode := func(_ context.Context, r Record) (digit, error) {
		img, err1 := Decode("png", r.Get("png"))
		label, err2 := Decode("cls", r.Get("cls"))
		if err := errors.Join(err1, err2); err != nil {
			return digit{}, fmt.Errorf("%s of %s: %w", r.Key, r.Shard, err)
		}
		pixels := ImageTensor(Tensor[float32]{}, img.(image.Image))
		return digit{First: pixels, Second: label.(int)}, nil
	}

	// The model is a perceptron: a weight for each digit and pixel. The digit
	// with the largest sum is its guess.
	const pixels = 3 * 16 * 16
	type model [10][pixels]float64
	guess := func(m *model, image []float32) int {
		var sums [10]float64
		for d := range m {
			for j, x := range image {
				sums[d] += m[d][j] * float64(x)
			}
		}
		return slices.Index(sums[:], slices.Max(sums[:]))
	}

	type checkpoint struct {
		Model model
		At    Cursor
	}
	// train resumes a checkpoint, runs until epoch 10 or until it is
	// interrupted after a number of batches, and returns the next checkpoint.
	train := func(c checkpoint, workers, batches int) checkpoint {
		records, err := Tar(shards, TarOptions{Shuffle: true, Seed: 1})
		if err != nil {
			log.Fatal(err)
		}
		digits := Map(records.Shuffle(200, 2), workers, decode)
		stream := Batch(digits, 32, CollatePair(Stack[float32], List[int])).Prefetch(2)
		for c.At.Epoch < 10 {
			for batch, err := range stream.Run(ctx, &c.At) {
				if err != nil {
					log.Fatal(err)
				}
				for i, label := range batch.Second {
					image := batch.First.Data[i*pixels : (i+1)*pixels]
					wrong := guess(&c.Model, image)
					for j, x := range image { // nothing changes if the guess was right
						c.Model[label][j] += float64(x)
						c.Model[wrong][j] -= float64(x)
					}
				}
				if batches--; batches == 0 {
					return c
				}
			}
		}
		return c
	}
	whole := train(checkpoint{}, 2, -1) // never interrupted
	half := train(checkpoint{}, 0, 80)  // interrupted in epoch 4, after 8 of 18 batches
	rest := train(half, 3, -1)          // resumes there
	fmt.Println("the same weights as without the interruption:", rest.Model == whole.Model)

	data, err := OpenTar(shards...)
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	images, recognized := Transform(data, decode), 0
	for i := range images.Len() {
		d, err := images.Get(ctx, i)
		if err != nil {
			log.Fatal(err)
		}
		if guess(&rest.Model, d.First.Data) == d.Second {
			recognized++
		}
	}
	fmt.Println("more than 9 of 10 training images recognized:", 10*recognized > 9*images.Len())
	// Output:
	// the same weights as without the interruption: true
	// more than 9 of 10 training images recognized: true
}

// ## Recipes: data in other forms

// NewBatchFunc feeds a language model with windows of tokens, from files as
// llm.c writes them: 256 int32, of which the first three are a magic number, a
// version and the number of tokens, then uint16 for GPT-2 or uint32 for Llama
// 3. Nothing would fail without the checks: the header would be 512 tokens, and
// tokens of another width, tokenizer or kind of file would be noise. The check
// of the ids takes 0.15 ns a token. It is the only one for files of uint16
// without a header, such as nanoGPT's: there let begin be 0, width 2, and
// tokens Size()/2.
//
// load writes inputs and targets, which are the tokens one further on, straight
// into the memory of a batch that was given back by Recycle, so a step
// allocates no tensors. The workers share the open files; that is safe with
// ReadAt, but not with Read. The windows of a file follow each other, so each
// token is an input once an epoch. For windows that begin at any token, let
// windows be tokens - window, and first i + f.windows - ends[k]. It is faster
// still if the files are mapped into memory (see mapped): nothing is read then.
func ExampleNewBatchFunc() {
	const window, vocabulary = 3, 50257
	type tokenFile struct {
		*os.File
		begin, width int // in bytes
		windows      int
	}
	open := func(name string) (f tokenFile, err error) {
		if f.File, err = os.Open(name); err != nil {
			return f, err
		}
		var head [256]int32
		if err := binary.Read(f, binary.LittleEndian, &head); err != nil {
			return f, fmt.Errorf("%s: the header: %w", name, err)
		}
		f.begin = 1024
		switch [2]int32(head[:]) {
		case [2]int32{20240520, 1}:
			f.width = 2
		case [2]int32{20240801, 7}:
			f.width = 4
		default:
			return f, fmt.Errorf("%s begins with %d, which no file of tokens does", name, head[:2])
		}
		tokens := int(head[2])
		info, err := f.Stat()
		if err == nil && info.Size() != int64(f.begin)+int64(f.width)*int64(tokens) {
			const text = "%s has %d bytes, too few or too many for %d tokens"
			err = fmt.Errorf(text, name, info.Size(), tokens)
		}
		f.windows = (tokens - 1) / window // the last target is one token behind the last window
		return f, err
	}

	dir, err := os.MkdirTemp("", "tokens")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	write := func(name string, parts ...any) string {
		var b bytes.Buffer
		for _, part := range parts {
			if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
				log.Fatal(err)
			}
		}
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, b.Bytes(), 0o666); err != nil {
			log.Fatal(err)
		}
		return name
	}
	header := func(head ...int32) (h [256]int32) {
		copy(h[:], head)
		return h
	}
	_, err1 := open(write("nano.bin", make([]uint16, 600)))
	_, err2 := open(write("cut.bin", header(20240520, 1, 600), make([]uint16, 599)))
	fmt.Println(strings.ReplaceAll(fmt.Sprint(err1, "\n", err2), dir, "…"))

	var files []tokenFile
	var ends []int // of the windows in files[:k+1]
	n := 0
	for _, name := range []string{
		write("0.bin", header(20240520, 1, 8), []uint16{0, 1, 2, 3, 4, 5, 6, 7}),
		write("1.bin", header(20240801, 7, 7), []uint32{10, 11, 12, 13, 128255, 15, 16}),
	} {
		f, err := open(name)
		if err != nil {
			log.Fatal(err)
		}
		defer f.Close()
		n += f.windows
		files = append(files, f)
		ends = append(ends, n)
	}

	// Inputs and targets, both of the shape [len(indices), window].
	type batch = Pair[Tensor[int64], Tensor[int64]]
	load := func(_ context.Context, dst batch, indices []int) (batch, error) {
		size := len(indices) * window
		for _, t := range []*Tensor[int64]{&dst.First, &dst.Second} {
			t.Data = slices.Grow(t.Data[:0], size)[:size]
			t.Shape = append(t.Shape[:0], len(indices), window)
		}
		var ids [window + 1]int64
		var buf [4 * len(ids)]byte
		for j, i := range indices {
			k, _ := slices.BinarySearch(ends, i+1) // window i is in file k
			f := files[k]
			first := (i + f.windows - ends[k]) * window
			buf := buf[:f.width*len(ids)]
			if _, err := f.ReadAt(buf, int64(f.begin)+int64(f.width)*int64(first)); err != nil {
				return dst, fmt.Errorf("%s: token %d: %w", f.Name(), first, err)
			}
			for t := range ids {
				if f.width == 2 {
					ids[t] = int64(binary.LittleEndian.Uint16(buf[2*t:]))
				} else {
					ids[t] = int64(binary.LittleEndian.Uint32(buf[4*t:]))
				}
				if ids[t] >= vocabulary {
					return dst, fmt.Errorf("%s: token %d is %d, in a vocabulary of %d",
						filepath.Base(f.Name()), first+t, ids[t], vocabulary)
				}
			}
			copy(dst.First.Data[j*window:], ids[:window])
			copy(dst.Second.Data[j*window:], ids[1:])
		}
		return dst, nil
	}
	loader, err := NewBatchFunc(n, load, Options{
		BatchSize: 2, Shuffle: true, Seed: 2, Workers: 2, DataVersion: "files 0 and 1",
	})
	if err != nil {
		log.Fatal(err)
	}
	for b, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err) // in a training the end
			continue
		}
		fmt.Println(b.First.Shape, b.First.Data, b.Second.Data) // train
		loader.Recycle(b)
	}
	// Output:
	// …/nano.bin begins with [0 0], which no file of tokens does
	// …/cut.bin has 2222 bytes, too few or too many for 600 tokens
	// [2 3] [3 4 5 10 11 12] [4 5 6 11 12 13]
	// dataloader: epoch 0, batch 1: 1.bin: token 4 is 128255, in a vocabulary of 50257
}

// packTexts packs tokenized texts into rows of length tokens, without padding:
// it concatenates 1,000 texts and divides their tokens. Prefetch tokenizes the
// next 1,000 texts while the loop uses the rows of these.
func packTexts[T any](texts Stream[[]T], length int) Stream[Tensor[T]] {
	divide := func(_ []Tensor[T], texts [][]T) (rows []Tensor[T], err error) {
		for row := range slices.Chunk(slices.Concat(texts...), length) {
			if len(row) == length {
				rows = append(rows, Tensor[T]{Data: row, Shape: []int{length}})
			}
		}
		if len(rows) == 0 && len(texts) == 1000 {
			err = errors.New("1,000 texts do not fill a row: take more texts at once")
		}
		return rows, err
	}
	rows := Unbatch(Batch(texts, 1000, divide).Prefetch(1))
	return NewStage(rows, true, func(
		ctx context.Context, rows Stream[Tensor[T]], from Cursor,
	) iter.Seq2[Item[Tensor[T]], error] {
		return func(yield func(Item[Tensor[T]], error) bool) {
			empty := from.Pos == 0
			for item, err := range rows.Items(ctx, from) {
				empty = false
				if !yield(item, err) {
					return
				}
			}
			if empty { // a loop over epochs would go on, and train nothing
				err := fmt.Errorf("all texts of epoch %d do not fill a row", from.Epoch)
				yield(Item[Tensor[T]]{}, err)
			}
		}
	})
}

// mapped returns the content of a file. Here it is a copy. A program for Unix
// maps the file into memory instead. Then it may be larger than the memory, is
// read page by page as it is used, and processes share it:
//
//	file, err := os.Open(name)
//	info, err := file.Stat()
//	data, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()),
//		syscall.PROT_READ, syscall.MAP_SHARED)
//
// On Windows golang.org/x/sys/windows has CreateFileMapping and MapViewOfFile.
// Where a system maps no files, as wasip1, use ReadAt. Mapped memory must not
// be written to. If the file is truncated meanwhile, a signal ends the program,
// where ReadAt returns an error. So replace a file by os.Rename, and do not
// write into it.
func mapped(name string) ([]byte, error) { return os.ReadFile(name) }

// Records of any length in one file, without headers, and in a second file the
// offsets at which they begin, as Arrow and FFCV store them. If the file is
// mapped, a record is a part of it, and an epoch allocates and copies nothing.
// Compared with a tar shard by OpenTar, nobody else can read such files, and
// nothing notices damage. The file of offsets is written last and renamed, so
// that an interrupted run leaves none.
func ExampleFunc_flatFile() {
	dir, err := os.MkdirTemp("", "records")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train.bin")
	var content []byte
	offsets := []uint64{0}
	for _, text := range []string{"a cat", "two dogs", "", "a goat"} {
		content = append(content, text...)
		offsets = append(offsets, uint64(len(content)))
	}
	index, err := binary.Append(nil, binary.LittleEndian, offsets)
	err = cmp.Or(err,
		os.WriteFile(name, content, 0o666),
		os.WriteFile(name+".part", index, 0o666),
		os.Rename(name+".part", name+".offsets"))
	if err != nil {
		log.Fatal(err)
	}

	data, err := mapped(name)
	if err != nil {
		log.Fatal(err)
	}
	index, err = os.ReadFile(name + ".offsets")
	if err != nil {
		log.Fatal(err)
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(index[8*i:]) }
	n := len(index)/8 - 1
	if n < 0 || at(0) != 0 || at(n) != uint64(len(data)) {
		log.Fatalf("%s has %d bytes, which its offsets do not fit", name, len(data))
	}
	records := Func(n, func(_ context.Context, i int) ([]byte, error) {
		return data[at(i):at(i+1):at(i+1)], nil // no capacity: an append copies
	})
	loader, err := New(records, List[[]byte], Options{BatchSize: 3, Shuffle: true})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q\n", batch)
		loader.Recycle(batch)
	}
	// Output:
	// ["" "two dogs" "a goat"]
	// ["a cat"]
}

// Texts of different lengths are packed into rows of one length. A text that
// does not fit into its row continues in the next one, so each text ends with a
// token of its own. 1,000 texts are divided at once, because an item for each
// token takes 25 to 30 times as long. The last tokens of each 1,000 texts, on
// average half a row, are left out: carried over, they would have to be in the
// cursor. So 1,000 texts should fill many rows; take more at once if they do
// not. An epoch without a row is an error. A resume tokenizes up to 1,000 texts
// again and goes on with the next row. A text that cannot be tokenized fails
// its 1,000. OnError before packTexts drops the text instead, but then a text
// that has failed only for a moment may cost the cursor; see Stream.OnError.
func ExampleUnbatch_packing() {
	const length = 8
	texts := []string{"To be", "or", "not to be", "that", "is", "the question", "Whether", "'tis"}
	tokenize := func(_ context.Context, i int) ([]rune, error) {
		return []rune(texts[i] + "."), nil
	}
	tokens := Map(Indices(Sequential(len(texts))), 2, tokenize) // Random shuffles the texts
	batches := Batch(packTexts(tokens, length), 2, Stack[rune])

	// train is one process. It resumes a checkpoint, takes one step and returns
	// the next checkpoint.
	train := func(saved []byte) ([]byte, error) {
		var at Cursor
		if err := json.Unmarshal(saved, &at); err != nil {
			return nil, err
		}
		for batch, err := range batches.Run(context.Background(), &at) {
			if err != nil {
				return nil, err
			}
			first, second := batch.Data[:length], batch.Data[length:]
			fmt.Printf("%v %q %q\n", batch.Shape, string(first), string(second))
			break
		}
		return json.Marshal(at)
	}
	saved := []byte(`{"epoch":0}`)
	for range 3 {
		var err error
		if saved, err = train(saved); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("saved: %.58s…\n", saved)
	}
	// Output:
	// [2 8] "To be.or" ".not to "
	// saved: {"epoch":0,"pos":2,"state":{"by":"Unbatch","n":2,"again":6…
	// [2 8] "be.that." "is.the q"
	// saved: {"epoch":0,"pos":4,"state":{"by":"Unbatch","n":4,"again":6…
	// [2 8] "uestion." "Whether."
	// saved: {"epoch":0,"pos":6,"state":{"by":"Unbatch","source":{"epoc…
}

// Whole documents packed into rows, as fine-tuning wants it: the longest first,
// each into the first row that has room for it. A batch says what keeps the
// documents apart. A token may attend to those of its own document only (a
// block mask): documents numbers the documents of a row from 1 on, and the
// padding has 0. Positions begin again with each document. A target is the next
// token of the same document. At the end of a document and in the padding the
// target is -100, for which there must be no loss: divide the sum of the losses
// by the number of the other targets, over all ranks.
//
// A document that is longer than a row is divided. Its parts share a token, so
// that each token but the first is a target once. The more documents are packed
// together, the fuller the rows: documents of 140 tokens on average fill rows
// of 512 to 97 % if 64 are packed together, and to 99.8 % if 1,024 are. A
// resume packs the same documents again, and goes on with the next row. Shuffle
// the rows, because rows of long documents come before those of short ones. A
// failed document fails all that are packed with it; OnError before the first
// Unbatch drops it instead, but then a resume may be refused if a document
// fails for a moment: try the cursor again. If it failed before the checkpoint,
// a Shuffle refuses the cursor for ever.
func ExampleUnbatch_wholeDocuments() {
	const length, together = 8, 1024 // tokens in a row, 2 or more; documents
	type doc = []int32               // tokens, the last of which ends it
	divide := func(_ context.Context, d doc) (parts []doc, err error) {
		for ; len(d) > length; d = d[length-1:] {
			parts = append(parts, d[:length])
		}
		if len(d) > 1 { // otherwise it has no target
			parts = append(parts, d)
		}
		return parts, nil
	}
	pack := func(_ context.Context, docs []doc) (rows [][]doc, err error) {
		slices.SortStableFunc(docs, func(a, b doc) int { return len(b) - len(a) })
		var room []int // in each row
		for _, d := range docs {
			r := slices.IndexFunc(room, func(free int) bool { return free >= len(d) })
			if r < 0 { // in no row
				r = len(rows)
				rows = append(rows, nil)
				room = append(room, length)
			}
			rows[r] = append(rows[r], d)
			room[r] -= len(d)
		}
		return rows, nil
	}
	// Four arrays of the shape [rows length].
	type batch struct{ tokens, documents, positions, targets []int32 }
	collate := func(_ batch, rows [][]doc) (batch, error) {
		n := len(rows) * length
		b := batch{make(doc, n), make(doc, n), make(doc, n), slices.Repeat(doc{-100}, n)}
		for r, docs := range rows {
			at := r * length
			for k, d := range docs {
				copy(b.tokens[at:], d)
				for j := range d {
					b.documents[at+j] = int32(k + 1)
					b.positions[at+j] = int32(j)
					if j > 0 {
						b.targets[at+j-1] = d[j]
					}
				}
				at += len(d)
			}
		}
		return b, nil
	}

	texts := Slice[doc]{{11, 12, 13}, {}, {21, 22, 23, 24, 25, 26, 27, 28, 29}, {31, 32}}
	docs := Map(Indices(Sequential(len(texts))), 2, texts.Get) // Random shuffles them
	parts := Unbatch(Map(docs, 0, divide))
	rows := Unbatch(Map(Batch(parts, together, List[doc]), 2, pack))
	for b, err := range Batch(rows, 1, collate).Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("tokens   ", b.tokens)
		fmt.Println("documents", b.documents)
		fmt.Println("positions", b.positions)
		fmt.Println("targets  ", b.targets)
	}
	// Output:
	// tokens    [21 22 23 24 25 26 27 28]
	// documents [1 1 1 1 1 1 1 1]
	// positions [0 1 2 3 4 5 6 7]
	// targets   [22 23 24 25 26 27 28 -100]
	// tokens    [11 12 13 28 29 31 32 0]
	// documents [1 1 1 2 2 3 3 0]
	// positions [0 1 2 0 1 0 1 0]
	// targets   [12 13 -100 29 -100 32 -100 -100]
}

// Units of many rows, such as the row groups of Parquet files, the record
// batches of Arrow files or the chunks of HDF5 files: a unit is read whole, and
// its rows become items. Workers × Prefetch + 1 units are in memory at once,
// here 3. With Map(…, 2, …) in place of NewBatchFunc there are 17; with Map(…,
// 0, …).Prefetch(1), which reads one unit at a time, 2. The rows in Shuffle
// come on top: copy rows that share their unit's memory, because one such row
// keeps the whole unit. A resume reads the units of these rows again. It
// compares only how many rows they have, so change DataVersion with the rows.
// All ranks read all units, and Shard deals out the rows. If one rank missed a
// unit, it would go on with rows of the other ranks, and nobody would notice.
// Therefore OnError ends the loop before Unbatch counts a failed unit, and the
// next process tries the unit again. For a unit that is damaged on all ranks,
// let load return no rows.
func ExampleUnbatch_rowGroups() {
	// Each stands for a part of a file.
	units := []string{"a1\na2\na3\na4\n", "b1\nb2\n", "c1\nc2\nc3\n"}
	load := func(_ context.Context, _ [][]string, indices []int) ([][]string, error) {
		unit := strings.NewReader(units[indices[0]])
		return csv.NewReader(unit).ReadAll() // your reader, whose errors name the unit
	}
	loader, err := NewBatchFunc(len(units), load, Options{
		Shuffle: true, Seed: 1, Workers: 2, Prefetch: 1, DataVersion: "v1",
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	loaded := StreamOf(loader).OnError(func(bad *SampleError) error {
		stop(bad)
		return bad
	})
	rows := Unbatch(loaded).Shuffle(4, 1)

	var at Cursor
	// Rank 1 of 2 resumes after a step of one rank.
	for _, rank := range []Rank{{Count: 1}, {Index: 1, Count: 2}} {
		batches := Batch(rows.Shard(rank, DropTail), 3, List[[]string])
		for batch, err := range batches.Run(ctx, &at) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(rank, batch)
			break
		}
	}
	// Output:
	// {0 1} [[b1] [a2] [a3]]
	// {1 2} [[c2] [b2] [c1]]
}

// A file of JSON lines that is larger than memory is shuffled over the whole
// epoch: one pass notes where each line begins, in 8 bytes a line, and Get
// reads its line. A shuffle within a window would need no such pass, but a file
// that is sorted would stay nearly sorted. Lines may have any length, the last
// one need not end, and blank lines count as part of the line before. For CSV,
// where a line break may stand between quotes, see Example_csv. With Go 1.27,
// or GOEXPERIMENT=jsonv2 before, decoding a line takes 0.6 of the time, and all
// of Get about 0.7.
func Example_jsonLines() {
	dir, err := os.MkdirTemp("", "lines")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	text := `{"text": "a"}` + "\n" +
		`{"text": "be"}` + "\r\n\n" +
		`{"text": "cat"}` + "\n" +
		`{"text": 4}` + "\n" +
		`{"text": "extra"}`
	if err := os.WriteFile(filepath.Join(dir, "train.jsonl"), []byte(text), 0o666); err != nil {
		log.Fatal(err)
	}

	file, err := os.Open(filepath.Join(dir, "train.jsonl"))
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	var offsets []int64 // line i is the bytes from offsets[i] up to offsets[i+1]
	end := int64(0)
	for r := bufio.NewReaderSize(file, 1<<20); err == nil; {
		var line []byte
		line, err = r.ReadBytes('\n') // at the end of the file, with io.EOF, the rest of it
		if len(bytes.TrimSpace(line)) > 0 {
			offsets = append(offsets, end)
		}
		end += int64(len(line))
	}
	if err != io.EOF {
		log.Fatal(err)
	}
	n := len(offsets)
	offsets = append(offsets, end)

	type sample struct {
		Text string `json:"text"`
	}
	data := Func(n, func(_ context.Context, i int) (s sample, err error) {
		line := make([]byte, offsets[i+1]-offsets[i])
		if _, err := file.ReadAt(line, offsets[i]); err != nil {
			return s, err
		}
		if err := json.Unmarshal(line, &s); err != nil {
			return s, fmt.Errorf("%s at byte %d: %w", filepath.Base(file.Name()), offsets[i], err)
		}
		return s, nil
	})
	opts := Options{BatchSize: 2, Shuffle: true, Seed: 2, Workers: 2}
	opts.OnError = func(bad *SampleError) error {
		// What follows the place is encoding/json's, and differs between
		// versions of Go.
		place, _, _ := strings.Cut(bad.Err.Error(), ": ")
		fmt.Println("dropped", place)
		return nil
	}
	loader, err := New(data, List[sample], opts)
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [{cat} {be}]
	// dropped train.jsonl at byte 47
	// [{extra}]
	// [{a}]
}

// Compressed JSON lines, as in .jsonl.gz, in many files: each is a stream, up
// to 64 are read side by side, and their lines are shuffled. A resume
// decompresses the files again, up to its place. Shuffle mixes only what is
// near, so let it have ten times the lines of a file, or shuffle what you
// write. The rest of a truncated file is one failed item, which costs more than
// a line if the loop skips it. For .zst import
// github.com/klauspost/compress/zstd, whose NewReader replaces that of gzip.
// What fits on the disk decompressed is mixed better by Example_jsonLines.
func Example_jsonLinesGzip() {
	store := fstest.MapFS{} // or os.DirFS
	for name, text := range map[string]string{
		"0.jsonl.gz": `{"text": "a"}` + "\n" + `{"text": "b"}` + "\n\n" + `{"text": "c"}`,
		"1.jsonl.gz": `{"text": "d"}` + "\n" + `{"text": "e"}` + "\n",
	} {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := io.WriteString(w, text)
		if err := errors.Join(err, w.Close()); err != nil {
			log.Fatal(err)
		}
		store[name] = &fstest.MapFile{Data: b.Bytes()}
	}
	cut := store["1.jsonl.gz"]
	store["2.jsonl.gz"] = &fstest.MapFile{Data: cut.Data[:len(cut.Data)-9]}

	type sample struct {
		Text string `json:"text"`
	}
	lines := func(name string) Stream[[]byte] {
		return FromSeq(func(ctx context.Context, epoch int) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				file, err := store.Open(name)
				if err != nil {
					yield(nil, err)
					return
				}
				defer file.Close()
				unzipped, err := gzip.NewReader(bufio.NewReaderSize(file, 1<<20))
				if err != nil {
					yield(nil, fmt.Errorf("%s: %w", name, err))
					return
				}
				r := bufio.NewReaderSize(unzipped, 1<<16)
				for err == nil {
					var line []byte
					line, err = r.ReadBytes('\n') // at the end, with io.EOF, the rest of the file
					if err != nil && err != io.EOF {
						yield(nil, fmt.Errorf("%s: %w", name, err))
						return
					}
					if len(bytes.TrimSpace(line)) > 0 && !yield(line, nil) {
						return
					}
				}
			}
		})
	}
	var files []Stream[[]byte]
	for _, name := range slices.Sorted(maps.Keys(store)) { // fs.Glob lists a folder's
		files = append(files, lines(name))
	}
	shuffled := Mix(MixOptions{}, files...).Shuffle(10_000, 1)
	samples := Map(shuffled, 2, func(_ context.Context, line []byte) (s sample, err error) {
		err = json.Unmarshal(line, &s)
		return s, err
	})
	for s, err := range samples.Epoch(context.Background(), 0) {
		fmt.Print(s)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			fmt.Print(" the rest of 2.jsonl.gz ")
		} else if err != nil {
			log.Fatal(err)
		}
	}
	// Output: {} the rest of 2.jsonl.gz {e}{b}{e}{d}{c}{d}{a}
}

// TFRecord files, as TensorFlow writes them. A record is its length in 8 bytes,
// a sum of these, the data, and a sum of them: a CRC-32C that is rotated, plus
// a constant. A record with a wrong sum is a failed item. A length with a wrong
// sum, or a truncated file, costs the rest of the file, also as one item, since
// nobody knows where the next record begins. A resume reads the file again, up
// to its place. Most records are messages tf.Example: decode them with a
// package for protocol buffers in a Map. Several files are mixed as in
// Example_jsonLinesGzip.
func ExampleFromSeq_tfrecord() {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	masked := func(data []byte) uint32 {
		return bits.RotateLeft32(crc32.Checksum(data, castagnoli), 17) + 0xa282ead8
	}
	read := func(file *bufio.Reader) (data []byte, sound bool, err error) {
		var head [12]byte
		if _, err := io.ReadFull(file, head[:]); err != nil {
			return nil, false, err // io.EOF at the end
		}
		length := binary.LittleEndian.Uint64(head[:])
		if binary.LittleEndian.Uint32(head[8:]) != masked(head[:8]) || length > 1<<30 {
			return nil, false, fmt.Errorf("no TFRecord, or damaged: % x", head)
		}
		data = make([]byte, length+4)
		if _, err := io.ReadFull(file, data); err != nil {
			return nil, false, io.ErrUnexpectedEOF
		}
		sum := binary.LittleEndian.Uint32(data[length:])
		return data[:length], sum == masked(data[:length]), nil
	}
	records := func(fsys fs.FS, name string) Stream[[]byte] {
		return FromSeq(func(context.Context, int) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				file, err := fsys.Open(name)
				if err != nil {
					yield(nil, err)
					return
				}
				defer file.Close()
				r := bufio.NewReaderSize(file, 1<<20)
				for k := 0; ; k++ {
					data, sound, err := read(r)
					if err == io.EOF {
						return
					}
					if err != nil {
						yield(nil, fmt.Errorf("%s, record %d: %w", name, k, err))
						return
					}
					if !sound {
						data, err = nil, fmt.Errorf("%s, record %d: its sum is wrong", name, k)
					}
					if !yield(data, err) {
						return
					}
				}
			}
		})
	}

	// An empty record as TensorFlow writes it, and four of our own.
	content := "\x00\x00\x00\x00\x00\x00\x00\x00\x29\x03\x98\x07\xd8\xea\x82\xa2"
	for _, text := range []string{"cat", "cow", "dog", "rat"} {
		frame := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
		frame = binary.LittleEndian.AppendUint32(frame, masked(frame))
		frame = binary.LittleEndian.AppendUint32(append(frame, text...), masked([]byte(text)))
		content += string(frame)
	}
	content = strings.Replace(content, "cow", "cew", 1) // damaged
	fsys := fstest.MapFS{                               // or os.DirFS
		"a": {Data: []byte(content[:len(content)-1])}, // truncated
		"b": {Data: []byte("another file")},
	}
	for _, name := range []string{"a", "b"} {
		for data, err := range records(fsys, name).Epoch(context.Background(), 0) {
			var bad *SampleError
			if errors.As(err, &bad) {
				fmt.Println(bad.Err)
			} else if err != nil {
				log.Fatal(err)
			} else {
				fmt.Printf("%q\n", data)
			}
		}
	}
	// Output:
	// ""
	// "cat"
	// a, record 2: its sum is wrong
	// "dog"
	// a, record 4: unexpected EOF
	// b, record 0: no TFRecord, or damaged: 61 6e 6f 74 68 65 72 20 66 69 6c 65
}

// Megatron-LM's data: train.idx has the lengths and places of the sequences,
// and train.bin their tokens, as int32 or uint16. The index must be as long as
// it says, and the sequences must follow each other and fill train.bin, so
// files that do not belong together, a truncated one and other types are
// errors. A sample is a sequence, usually a document: pack them as in
// ExampleUnbatch_wholeDocuments. An index takes 12 bytes a sequence in memory.
func ExampleFunc_megatron() {
	open := func(index []byte, bin io.ReaderAt, size int64) (Dataset[[]int32], error) {
		const magic = "MMIDIDX\x00\x00"
		var head struct {
			Magic                [len(magic)]byte
			Version              uint64
			Type                 uint8
			Sequences, Documents uint64
		}
		r := bytes.NewReader(index)
		err := binary.Read(r, binary.LittleEndian, &head)
		if err != nil || string(head.Magic[:]) != magic || head.Version != 1 {
			return nil, errors.New("the index is no Megatron-LM index of version 1")
		}
		width, known := map[uint8]int64{4: 4, 8: 2}[head.Type]
		if !known {
			return nil, fmt.Errorf("type %d of tokens, want 4 (int32) or 8 (uint16)", head.Type)
		}
		n, left := head.Sequences, uint64(r.Len())
		if n > left/12 || head.Documents > left/8 || 12*n+8*head.Documents != left {
			return nil, fmt.Errorf("the index has %d bytes for %d sequences", left, n)
		}
		lengths, begins := make([]int32, n), make([]int64, n)
		err = errors.Join(binary.Read(r, binary.LittleEndian, lengths),
			binary.Read(r, binary.LittleEndian, begins))
		if err != nil {
			return nil, err
		}
		end := int64(0)
		for i, length := range lengths {
			if length < 0 || begins[i] != end {
				return nil, fmt.Errorf("sequence %d does not begin where the last one ends", i)
			}
			end += width * int64(length)
		}
		if end != size {
			return nil, fmt.Errorf("the index is of %d bytes of tokens, not of %d", end, size)
		}
		return Func(int(n), func(_ context.Context, i int) ([]int32, error) {
			data := make([]byte, width*int64(lengths[i]))
			if n, err := bin.ReadAt(data, begins[i]); n < len(data) {
				return nil, fmt.Errorf("sequence %d: %w", i, err)
			}
			tokens := make([]int32, lengths[i])
			for k := range tokens {
				if width == 2 {
					tokens[k] = int32(binary.LittleEndian.Uint16(data[2*k:]))
				} else {
					tokens[k] = int32(binary.LittleEndian.Uint32(data[4*k:]))
				}
			}
			return tokens, nil
		}), nil
	}

	// In a program os.ReadFile("train.idx"), os.Open("train.bin") and its size.
	index := []byte("MMIDIDX\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" + "\x08" +
		"\x02\x00\x00\x00\x00\x00\x00\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" +
		"\x02\x00\x00\x00" + "\x01\x00\x00\x00" + // lengths
		"\x00\x00\x00\x00\x00\x00\x00\x00" + "\x04\x00\x00\x00\x00\x00\x00\x00" + // begins
		strings.Repeat("\x00", 24)) // the documents
	const bin = "\x07\x00\xff\xff\x01\x02"
	for _, bin := range []string{bin, bin[:4]} {
		data, err := open(index, strings.NewReader(bin), int64(len(bin)))
		if err != nil {
			fmt.Println(err)
			continue
		}
		for i := range data.Len() {
			fmt.Println(data.Get(context.Background(), i))
		}
	}
	_, err := open(index[:40], nil, 0)
	fmt.Println(err)
	// Output:
	// [7 65535] <nil>
	// [513] <nil>
	// the index is of 6 bytes of tokens, not of 4
	// the index has 6 bytes for 2 sequences
}

// A CSV file that is larger than memory: csv.Reader says where each record
// begins, since line breaks may stand between quotes, and Get parses its
// record. Get takes a bufio.Reader from a pool, because csv.NewReader would
// allocate one of 4 KB for each record. A record with too few or too many
// fields is an error of the first pass. Several files are data sets for Concat.
// For a file that fits into memory, set ReuseRecord, append the numbers of all
// records to one []float32, and make Rows of it: a Slice of what ReadAll
// returns takes 1.2 to 2.5 times as long. Clone the strings that stay, because
// each keeps its record in memory.
func Example_csv() {
	dir, err := os.MkdirTemp("", "csv")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	text := "class,note,length,width\n" +
		"cat,purrs,46,25\n" +
		"\"dog\",\"barks,\nat night\",85,30\n\n" +
		"cow,,240,70\n"
	if err := os.WriteFile(filepath.Join(dir, "train.csv"), []byte(text), 0o666); err != nil {
		log.Fatal(err)
	}

	file, err := os.Open(filepath.Join(dir, "train.csv"))
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	records := csv.NewReader(file)
	header, err := records.Read()
	// Record i is the bytes from offsets[i] up to offsets[i+1].
	offsets := []int64{records.InputOffset()}
	for records.ReuseRecord = true; err == nil; {
		if _, err = records.Read(); err == nil {
			offsets = append(offsets, records.InputOffset())
		}
	}
	if err != io.EOF {
		log.Fatal(err)
	}
	column := func(name string) int { return slices.Index(header, name) }
	class, numbers := column("class"), []int{column("width"), column("length")}
	if class < 0 || slices.Contains(numbers, -1) {
		fmt.Println("a column is missing in", header)
		return
	}

	type sample = Pair[Tensor[float32], string]
	buffers := sync.Pool{New: func() any { return bufio.NewReader(nil) }}
	data := Func(len(offsets)-1, func(_ context.Context, i int) (sample, error) {
		buffer := buffers.Get().(*bufio.Reader)
		defer buffers.Put(buffer)
		buffer.Reset(io.NewSectionReader(file, offsets[i], offsets[i+1]-offsets[i]))
		fields, err := csv.NewReader(buffer).Read()
		if err != nil {
			return sample{}, fmt.Errorf("record %d: %w", i, err)
		}
		x := Tensor[float32]{Shape: []int{len(numbers)}}
		for _, c := range numbers {
			v, err := strconv.ParseFloat(fields[c], 32)
			if err != nil {
				return sample{}, fmt.Errorf("record %d, %s: %w", i, header[c], err)
			}
			x.Data = append(x.Data, float32(v))
		}
		return sample{First: x, Second: fields[class]}, nil
	})
	collate := CollatePair(Stack[float32], List[string])
	opts := Options{BatchSize: 2, Shuffle: true, Seed: 2, Workers: 2}
	loader, err := New(data, collate, opts)
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.First.Shape, batch.First.Data, batch.Second)
	}
	// Output:
	// [2 2] [30 85 25 46] [dog cat]
	// [1 2] [70 240] [cow]
}

// MNIST's files, as they are published: gzipped arrays of bytes behind a
// header, the IDX format. Rows makes a data set of an array, Pairs joins the
// images and their labels, and an image becomes float32 as it is fetched, so
// the whole set stays in a quarter of the memory. For the real files let mnist
// be os.DirFS of their folder. Fashion-MNIST, KMNIST and EMNIST have the same
// format.
func Example_mnist() {
	mnist := fstest.MapFS{}
	for name, data := range map[string][]byte{ // three images of 2 by 2 pixels
		"train-images-idx3-ubyte.gz": {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2,
			0, 51, 0, 51, 102, 0, 102, 0, 255, 255, 255, 255},
		"train-labels-idx1-ubyte.gz": {0, 0, 8, 1, 0, 0, 0, 3, 7, 4, 9},
	} {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(data)
		if err := errors.Join(err, w.Close()); err != nil {
			log.Fatal(err)
		}
		mnist[name] = &fstest.MapFile{Data: b.Bytes()}
	}

	// read reads an array with so many dimensions: the bytes 0, 0, 8 for uint8
	// and dims, the lengths, and the data.
	read := func(name string, dims int) (t Tensor[uint8], err error) {
		file, err := mnist.Open(name)
		if err != nil {
			return t, err
		}
		defer file.Close()
		unzipped, err := gzip.NewReader(file)
		if err != nil {
			return t, fmt.Errorf("%s: %w", name, err)
		}
		data, err := io.ReadAll(unzipped) // to the end, where the checksum is
		if err != nil {
			return t, fmt.Errorf("%s: %w", name, err)
		}
		head := []byte{0, 0, 8, byte(dims)}
		if !bytes.HasPrefix(data, head) || len(data) < 4+4*dims {
			begins := data[:min(4, len(data))]
			return t, fmt.Errorf("%s: it begins with % x, want % x", name, begins, head)
		}
		for d := range dims {
			t.Shape = append(t.Shape, int(binary.BigEndian.Uint32(data[4+4*d:])))
		}
		t.Data = data[4+4*dims:] // Rows compares its length with the shape
		return t, nil
	}
	pixels, err := read("train-images-idx3-ubyte.gz", 3)
	if err != nil {
		log.Fatal(err)
	}
	digits, err := read("train-labels-idx1-ubyte.gz", 1)
	if err != nil {
		log.Fatal(err)
	}
	rows, err := Rows(pixels)
	if err != nil {
		log.Fatal(err)
	}
	labels, err := Rows(digits)
	if err != nil {
		log.Fatal(err)
	}
	type sample = Tensor[float32]
	images := Transform(rows, func(_ context.Context, image Tensor[uint8]) (sample, error) {
		x := sample{Data: make([]float32, len(image.Data)), Shape: image.Shape}
		for j, p := range image.Data {
			x.Data[j] = float32(p) / 255
		}
		return x, nil
	})
	data, err := Pairs(images, labels)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(data, CollatePair(Stack[float32], Stack[uint8]), Options{
		BatchSize: 2, Shuffle: true, Seed: 2, Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.First.Shape, batch.First.Data, batch.Second.Data)
	}
	// Output:
	// [2 2 2] [0.4 0 0.4 0 0 0.2 0 0.2] [4 7]
	// [1 2 2] [1 1 1 1] [9]
}

// tinyDB stands for the database of ExampleNewBatchFunc_database, with what
// database/sql needs of a driver: a table of texts.
type tinyDB map[int64]string

func (db tinyDB) Connect(context.Context) (driver.Conn, error) { return db, nil }

func (db tinyDB) Driver() driver.Driver { return nil }

func (db tinyDB) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }

func (db tinyDB) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }

func (db tinyDB) Close() error { return nil }

// QueryContext returns the rows with the ids in args, or all ids.
func (db tinyDB) QueryContext(
	_ context.Context, _ string, args []driver.NamedValue,
) (driver.Rows, error) {
	rows := &tinyRows{columns: min(2, 1+len(args))}
	for _, id := range slices.Sorted(maps.Keys(db)) {
		asked := func(a driver.NamedValue) bool { return a.Value == id }
		if len(args) == 0 || slices.ContainsFunc(args, asked) {
			rows.rows = append(rows.rows, []driver.Value{id, db[id]})
		}
	}
	return rows, nil
}

// tinyRows are rows of tinyDB.
type tinyRows struct {
	columns int
	rows    [][]driver.Value
}

func (r *tinyRows) Columns() []string { return make([]string, r.columns) }

func (r *tinyRows) Close() error { return nil }

func (r *tinyRows) Next(dest []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(dest, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}

// A table of a database, with one query for each batch, while other programs
// insert and delete rows. An index is a place in the list of the ids, so the
// list of an epoch is part of the checkpoint: a file, since it may be long. The
// first process of an epoch writes the file, and a resume reads it. New rows
// come in the next epoch. A deleted row is left out of its batch, which may
// become empty, and counted. Without the file each row more or less would be
// another list, and the resume refused. If rows are never deleted, save the
// largest id instead, and add WHERE id <= ? to the query. On several ranks rank
// 0 makes the file before the others look for it.
//
// The result of a query is in any order, and has a row once that was asked for
// twice, so load puts the texts in the order of the indices. Postgres has $1,
// $2, … for the question marks, or id = ANY($1). (tinyDB and tinyRows, which
// stand above, are only the database here.)
func ExampleNewBatchFunc_database() {
	dir, err := os.MkdirTemp("", "run") // where the checkpoints are
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	table := tinyDB{10: "purr", 12: "moo", 15: "woof", 17: "meow"}
	db := sql.OpenDB(table) // or sql.Open, with a driver and an address
	defer db.Close()

	queryIDs := func() (ids []int64, err error) {
		rows, err := db.QueryContext(ctx, "SELECT id FROM texts ORDER BY id")
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		return ids, rows.Err() // Next also returns false if the connection breaks
	}
	idsOf := func(epoch int) (ids []int64, err error) {
		name := filepath.Join(dir, fmt.Sprintf("ids-%d.json", epoch))
		saved, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(saved, &ids)
			return ids, err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if ids, err = queryIDs(); err != nil {
			return nil, err
		}
		if saved, err = json.Marshal(ids); err != nil {
			return nil, err
		}
		if err := os.WriteFile(name+".new", saved, 0o666); err != nil {
			return nil, err
		}
		return ids, os.Rename(name+".new", name) // a killed process leaves no half of a list
	}

	var missing atomic.Int64
	open := func(epoch int) (*DataLoader[[]string], error) {
		ids, err := idsOf(epoch)
		if err != nil {
			return nil, err
		}
		load := func(ctx context.Context, batch []string, indices []int) ([]string, error) {
			var args []any
			for _, i := range indices {
				args = append(args, ids[i])
			}
			marks := "?" + strings.Repeat(", ?", len(args)-1)
			query := "SELECT id, text FROM texts WHERE id IN (" + marks + ")"
			rows, err := db.QueryContext(ctx, query, args...)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			found := map[int64]string{}
			for rows.Next() {
				var id int64
				var text string
				if err := rows.Scan(&id, &text); err != nil {
					return nil, err
				}
				found[id] = text
			}
			if err := rows.Err(); err != nil {
				return nil, err
			}
			batch = batch[:0]
			for _, i := range indices {
				if text, ok := found[ids[i]]; ok {
					batch = append(batch, text)
				} else {
					missing.Add(1)
				}
			}
			return batch, nil
		}
		return NewBatchFunc(len(ids), load, Options{
			BatchSize: 2, Shuffle: true, Seed: 1, Workers: 2,
			DataVersion: fmt.Sprintf("ids #%x", crc32.ChecksumIEEE(fmt.Append(nil, ids))),
		})
	}
	train := func(at Cursor, steps int) Cursor { // one process
		for at.Epoch < 2 {
			loader, err := open(at.Epoch)
			if err != nil {
				log.Fatal(err)
			}
			for batch, err := range loader.Run(ctx, &at) {
				if err != nil {
					log.Fatal(err)
				}
				fmt.Println("epoch", at.Epoch, batch)
				if steps--; steps == 0 {
					return at
				}
			}
		}
		return at
	}
	at := train(Cursor{}, 1)
	delete(table, 10) // by other programs
	table[20] = "baa"
	train(at, -1)
	fmt.Println(missing.Load(), "rows missing")
	// Output:
	// epoch 0 [meow woof]
	// epoch 0 [moo]
	// epoch 1 [moo woof]
	// epoch 1 [meow baa]
	// 1 rows missing
}

// Remote shards that are kept on a local disk: the epochs after the first read
// them there. A shard gets its name when all of it is on the disk and Tar finds
// its end, so processes may share the folder. A record with a fault of its own
// is kept. What is truncated, or does not fit, is read from the server in each
// epoch, after an attempt to keep it. Nothing is removed, and a shard that is
// replaced on the server is not noticed: give it a new name. Processes that are
// killed leave files *.part. (tarEntries and must make the shards here.)
func ExampleOpener_cacheOnDisk() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	keep := func(ctx context.Context, name, local string) error {
		remote, err := OpenShard(ctx, name, 0) // or any other store
		if err != nil {
			return err
		}
		defer remote.Close()
		file, err := os.CreateTemp(dir, "*.part")
		if err != nil {
			return err
		}
		defer os.Remove(file.Name()) // of no effect after Rename
		_, err = io.Copy(file, remote)
		err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close())
		if err != nil {
			return err
		}
		// No fields: the data of all files are skipped.
		records, err := Tar([]string{file.Name()}, TarOptions{Fields: []string{}})
		if err != nil {
			return err
		}
		for _, err := range records.Epoch(ctx, 0) {
			var bad *TarError
			if err != nil && (!errors.As(err, &bad) || bad.Rest) {
				return err
			}
		}
		return os.Rename(file.Name(), local)
	}
	open := func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		// Without a signature. Keep the query if it names the shard.
		address, _, _ := strings.Cut(name, "?")
		local := filepath.Join(dir, fmt.Sprintf("%x.tar", sha256.Sum256([]byte(address))))
		if _, err := os.Stat(local); err != nil {
			if err := keep(ctx, name, local); err != nil {
				fmt.Println("not kept:", path.Base(address)) // log err, too
				return OpenShard(ctx, name, offset)
			}
		}
		return OpenShard(ctx, local, offset)
	}

	store := fstest.MapFS{}
	server := httptest.NewServer(http.FileServerFS(store))
	defer server.Close()
	records, err := Tar([]string{server.URL + "/a.tar"}, TarOptions{Open: open})
	if err != nil {
		log.Fatal(err)
	}
	shard := tarEntries("cat.txt=meow", "dog.txt=woof", "dog.txt=arf") // the dog has a field twice
	for epoch, data := range [][]byte{shard[:600], shard, nil} {
		store["a.tar"] = &fstest.MapFile{Data: data} // what the server has in this epoch
		for r, err := range records.Epoch(context.Background(), epoch) {
			fmt.Printf("epoch %d: %q, failed: %v\n", epoch, r.Key, err != nil)
		}
	}
	// Output:
	// not kept: a.tar
	// epoch 0: "", failed: true
	// epoch 1: "cat", failed: false
	// epoch 1: "", failed: true
	// epoch 2: "cat", failed: false
	// epoch 2: "", failed: true
}

// A reopened reader opens an object when its first byte is asked for, and again
// where a connection has broken. Temporary says which errors it gets over, of
// get and of bodies. Five failures in a row, without a byte between them, are
// an error.
type reopened struct {
	ctx       context.Context
	get       func(etag string, offset int64) (body io.ReadCloser, tag string, err error)
	temporary func(error) bool
	wait      time.Duration // after the first failure; then twice as long each time

	object   io.ReadCloser // nil if it is to be opened at offset
	etag     string        // of the first answer
	offset   int64
	failures int
}

func (r *reopened) Read(p []byte) (n int, err error) {
	for {
		err = nil
		if r.object == nil {
			var tag string
			if r.object, tag, err = r.get(r.etag, r.offset); err == nil && r.etag == "" {
				r.etag = tag
			}
		}
		if err == nil {
			n, err = r.object.Read(p)
		}
		r.offset += int64(n)
		if n > 0 {
			r.failures = 0
		}
		if err == nil || err == io.EOF || !r.temporary(err) || r.failures == 5 {
			return n, err
		}
		r.Close()
		if n > 0 {
			return n, nil
		}
		r.failures++
		select {
		case <-time.After(r.wait << (r.failures - 1)):
		case <-r.ctx.Done():
			return 0, context.Cause(r.ctx)
		}
	}
}

// Seek is called by Tar to skip large files, relative to the offset. The next
// Read asks for the bytes from there on.
func (r *reopened) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekCurrent {
		return 0, errors.ErrUnsupported
	}
	r.offset += offset
	return r.offset, r.Close()
}

func (r *reopened) Close() (err error) {
	if r.object != nil {
		err = r.object.Close()
	}
	r.object = nil
	return err
}

// The client of a store, of S3, GCS or Azure, as an Opener that survives broken
// connections and a store that is away for up to 31 seconds. Without reopened
// each break costs the rest of its shard, as one failed item, and a store that
// is away costs whole shards. What is not temporary, such as a shard that is
// missing, is an error at once. All requests for one shard name the version
// that the first answer had, since an object that is replaced meanwhile would
// be continued in the middle of another; a store without versions or ETags
// cannot prevent that. Copy the type reopened, too, which stands before this
// Example. (tarEntries, breaksAfter, must and readerFunc are only for the store
// here.)
//
// With github.com/minio/minio-go/v7, get sets opts.SetRange(offset, 0) if
// offset is not 0, and opts.SetMatchETag(etag) if etag is not empty, and calls
// minio.Core.GetObject, whose ObjectInfo has the ETag. Temporary is
//
//	code := minio.ToErrorResponse(err).StatusCode // 0 if there was no answer
//	return code == 0 || code == 408 || code == 429 || code >= 500
//
// With github.com/aws/aws-sdk-go-v2/service/s3, get passes Range, "bytes=5-"
// for the offset 5, and IfMatch to Client.GetObject. Temporary is
//
//	var answer *http.ResponseError // of github.com/aws/smithy-go/transport/http
//	code := 0                      // as in an answer that has not come
//	if errors.As(err, &answer) {
//		code = answer.HTTPStatusCode()
//	}
//	return code == 0 || code == 408 || code == 429 || code >= 500
func ExampleOpener_reopen() {
	shard := tarEntries("cat.txt=" + strings.Repeat("purr", 1000)) // a tar file with one record
	errReset, errMissing := errors.New("the connection was reset"), errors.New("no such object")
	requests := 0
	// get is the store's client. Here it has no connection at first, and each
	// connection breaks after 1,500 bytes.
	get := func(
		_ context.Context, name, etag string, offset int64,
	) (body io.ReadCloser, tag string, err error) {
		requests++
		switch {
		case name != "s3://bucket/train.tar":
			return nil, "", errMissing
		case etag != "" && etag != "v1":
			return nil, "", fmt.Errorf("%s has another version than %s", name, etag)
		case requests < 3:
			return nil, "", errReset
		}
		rest := shard[offset:]
		if len(rest) <= 1500 {
			return io.NopCloser(bytes.NewReader(rest)), "v1", nil
		}
		breaks := breaksAfter(rest[:1500], func() error { return errReset })
		return io.NopCloser(breaks), "v1", nil
	}
	open := func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		return &reopened{
			ctx: ctx, offset: offset,
			get: func(etag string, offset int64) (io.ReadCloser, string, error) {
				return get(ctx, name, etag, offset)
			},
			temporary: func(err error) bool { return errors.Is(err, errReset) },
			wait:      time.Millisecond, // time.Second for a server
		}, nil
	}
	shards := []string{"s3://bucket/train.tar", "s3://bucket/missing.tar"}
	records, err := Tar(shards, TarOptions{Open: open})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		missing := errors.Is(err, errMissing)
		fmt.Printf("%q: %d bytes, requests so far: %d, missing: %v\n",
			r.Key, len(r.Get("txt")), requests, missing)
	}
	// Output:
	// "cat": 4000 bytes, requests so far: 6, missing: false
	// "": 0 bytes, requests so far: 7, missing: true
}

// A private bucket of S3, read by presigned URLs (AWS: Authenticating Requests:
// Using Query Parameters, Signature Version 4). A URL is made when a shard is
// opened. It should be valid for as long as the shard may be read, because
// OpenShard resumes a broken connection with the same URL; S3 allows seven
// days. Other stores of the S3 protocol differ in host and region.
func ExampleOpener_presigned() {
	const keyID, secret = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	const region = "us-east-1"
	sum := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	presign := func(bucket, object string, now time.Time, valid time.Duration) string {
		stamp := now.UTC().Format("20060102T150405Z")
		scope := stamp[:8] + "/" + region + "/s3/aws4_request"
		host := bucket + ".s3.amazonaws.com"
		path := "/" + strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(object))
		query := url.Values{
			"X-Amz-Algorithm":     {"AWS4-HMAC-SHA256"},
			"X-Amz-Credential":    {keyID + "/" + scope},
			"X-Amz-Date":          {stamp},
			"X-Amz-Expires":       {fmt.Sprint(int(valid.Seconds()))},
			"X-Amz-SignedHeaders": {"host"},
		}.Encode() // sorted, as the signature wants it
		const canonical = "GET\n%s\n%s\nhost:%s\n\nhost\nUNSIGNED-PAYLOAD"
		request := sha256.Sum256(fmt.Appendf(nil, canonical, path, query, host))
		text := fmt.Sprintf("AWS4-HMAC-SHA256\n%s\n%s\n%x", stamp, scope, request)
		key := []byte("AWS4" + secret)
		for part := range strings.SplitSeq(scope, "/") {
			key = sum(key, part)
		}
		return fmt.Sprintf("https://%s%s?%s&X-Amz-Signature=%x", host, path, query, sum(key, text))
	}
	var open Opener = func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		bucket, object, _ := strings.Cut(strings.TrimPrefix(name, "s3://"), "/")
		return OpenShard(ctx, presign(bucket, object, time.Now(), 24*time.Hour), offset)
	}
	_, err := Tar([]string{"s3://examplebucket/train-000.tar"}, TarOptions{Open: open})
	fmt.Println(err)

	// The example of AWS's documentation.
	day := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	address, err := url.Parse(presign("examplebucket", "test.txt", day, 24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(address.Query().Get("X-Amz-Signature"))
	// Output:
	// <nil>
	// aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404
}

// Elastic training from shards: the number of ranks may change at any
// checkpoint, and the steps stay the same. The shards are read by a fixed
// number of virtual readers, which are dealt to the ranks in blocks. A step
// takes perReader records of each reader. Only a rank knows where its readers
// stand, so each rank saves the cursors of its block, and a resume reads the
// files of all ranks. A rank with many readers has as many shards open, and a
// rank without one is an error. (tarEntries and must make the shards here.)
func ExampleTarOptions_elastic() {
	const readers, perReader = 4, 2
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var shards []string
	// As many shards as readers, or more. Here shard 0 has the records a0 to
	// a3.
	for i := range readers {
		var records []string
		for k := range 4 + i {
			records = append(records, fmt.Sprintf("%c%d.txt=", 'a'+i, k))
		}
		shards = append(shards, filepath.Join(dir, fmt.Sprint(i, ".tar")))
		if err := os.WriteFile(shards[i], tarEntries(records...), 0o666); err != nil {
			log.Fatal(err)
		}
	}

	// rank trains for some steps, from the cursors of its readers on, which it
	// updates. It returns the keys of each step.
	rank := func(index, count, steps int, at []Cursor) (keys []string, err error) {
		if count > readers {
			return nil, fmt.Errorf("%d ranks are more than %d readers", count, readers)
		}
		first := index * readers / count
		var next []func() (Record, error, bool)
		for i := range at {
			records, err := Tar(shards, TarOptions{
				Rank: Rank{Index: first + i, Count: readers}, Shuffle: true, Seed: 1,
			})
			if err != nil {
				return nil, err
			}
			endless := records.Cycle().Prefetch(perReader)
			pull, stop := iter.Pull2(endless.Run(context.Background(), &at[i]))
			defer stop()
			next = append(next, pull)
		}
		for range steps {
			var batch []string
			for _, next := range next {
				for range perReader {
					r, err, _ := next()
					if err != nil {
						return nil, err
					}
					batch = append(batch, r.Key)
				}
			}
			keys = append(keys, strings.Join(batch, " "))
		}
		return keys, nil
	}
	// train runs all ranks, which in truth are processes, from one checkpoint
	// to the next, and returns their steps.
	train := func(ranks, steps int, at []Cursor) (together []string) {
		together = make([]string, steps)
		for index := range ranks {
			// What the rank saves, as JSON.
			block := at[index*readers/ranks : (index+1)*readers/ranks]
			keys, err := rank(index, ranks, steps, block)
			if err != nil {
				return []string{err.Error()}
			}
			for k := range together {
				together[k] = strings.TrimPrefix(together[k]+" "+keys[k], " ")
			}
		}
		return together
	}
	at, other := make([]Cursor, readers), make([]Cursor, readers) // the cursors of all ranks' files
	fmt.Println(strings.Join(train(4, 4, at), "\n"))
	changing := slices.Concat(train(4, 1, other), train(1, 2, other), train(2, 1, other))
	fmt.Println("4 ranks, then 1, then 2:", changing[3])
	fmt.Println("same place:", fmt.Sprint(at) == fmt.Sprint(other))
	fmt.Println(train(5, 1, at))
	// Output:
	// d0 d1 c0 c1 b0 b1 a0 a1
	// d2 d3 c2 c3 b2 b3 a2 a3
	// d4 d5 c4 c5 b4 c0 d0 d1
	// d6 a0 b0 b1 c1 c2 d2 d3
	// 4 ranks, then 1, then 2: d6 a0 b0 b1 c1 c2 d2 d3
	// same place: true
	// [5 ranks are more than 4 readers]
}

// A stream is kept in memory when an epoch has been read to its end, and later
// epochs read nothing. An epoch that the loop leaves, or in which an item
// fails, is not kept, and the next loop reads the source again; OnError before
// the cache drops items that always fail. What is kept is whole after a resume,
// too: FromSeq calls its function from the start, and skips. Put in your own
// source and type of items. Shuffle and augment after the cache, because all
// epochs are the source's epoch 0, and do not change items in place.
func ExampleFromSeq_cache() {
	var read atomic.Int64
	source := FromSeq(func(context.Context, int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { // open, read, decode
			for line := range strings.FieldsSeq("a b c d e") {
				var err error
				if read.Add(1) == 6 {
					err = io.ErrUnexpectedEOF // the connection broke
				}
				if !yield(line, err) {
					return
				}
			}
		}
	})

	type item = string
	var memory atomic.Pointer[[]item] // nil until an epoch has been read to its end
	cached := FromSeq(func(ctx context.Context, _ int) iter.Seq2[item, error] {
		return func(yield func(item, error) bool) {
			if kept := memory.Load(); kept != nil {
				for _, value := range *kept {
					if !yield(value, nil) {
						return
					}
				}
				return
			}
			items, complete := []item{}, true
			for next, err := range source.Items(ctx, Cursor{}) {
				if err != nil && ctx.Err() == nil {
					// The source has broken. FromSeq would take an error for
					// that of an item.
					panic(err)
				}
				if err == nil {
					err = next.Err
				}
				if err != nil {
					complete = false
				}
				items = append(items, next.Value)
				if !yield(next.Value, err) {
					return
				}
			}
			if complete {
				memory.Store(&items)
			}
		}
	})

	var at Cursor
	for _, steps := range []int{2, -1, -1, -1} {
		fmt.Print("epoch ", at.Epoch, " from pos ", at.Pos, ":")
		for value, err := range cached.Run(context.Background(), &at) {
			var bad *SampleError
			if errors.As(err, &bad) {
				value = "failed"
			} else if err != nil {
				log.Fatal(err)
			}
			fmt.Print(" ", value)
			if steps--; steps == 0 {
				break
			}
		}
		fmt.Println("; lines read so far:", read.Load())
	}
	// Output:
	// epoch 0 from pos 0: a b; lines read so far: 2
	// epoch 0 from pos 2: c failed e; lines read so far: 7
	// epoch 1 from pos 0: a b c d e; lines read so far: 12
	// epoch 2 from pos 0: a b c d e; lines read so far: 12
}

// A cache of decoded samples on disk, for decoding that takes longer than
// reading its result: a file of encoding/gob with a checksum for each sample. A
// file is renamed when all of it is written, and all users may read it, so
// goroutines and processes may share the folder. A sample whose file is empty
// or damaged, as after a loss of power, is decoded and written again. If
// nothing can be written, as on a full disk, the log says so once, and samples
// are decoded each time. Processes that are killed leave files *.part. Random
// augmentation belongs in a Transform of the result; in the cache its first
// outcome would stay for ever. A change of the decoding or of the data needs a
// new folder, and gob does not write unexported fields. gob is slow for floats.
// Pixels that are kept as uint8, and made float32 in a Transform, take a third
// to a quarter of the time, and a sixth of the space.
func ExampleFunc_cacheOnDisk() {
	type sample = Tensor[float32]
	raw := Slice[string]{"1.5 2", "3 4.5", "5 6"}
	var decoded atomic.Int64
	decode := func(_ context.Context, text string) (x sample, err error) {
		decoded.Add(1)
		x = sample{Data: make([]float32, 2), Shape: []int{2}}
		_, err = fmt.Sscan(text, &x.Data[0], &x.Data[1])
		return x, err
	}

	dir, err := os.MkdirTemp("", "decoded-v1")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	slow := Transform(raw, decode)
	keep := func(name string, x sample) error {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(x); err != nil {
			return err
		}
		file, err := os.CreateTemp(dir, "*.part")
		if err != nil {
			return err
		}
		defer os.Remove(file.Name()) // of no effect after Rename
		sum := crc32.ChecksumIEEE(b.Bytes())
		_, err = file.Write(binary.LittleEndian.AppendUint32(b.Bytes(), sum))
		if err := errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
			return err
		}
		return os.Rename(file.Name(), name)
	}
	var warning sync.Once
	cached := Func(raw.Len(), func(ctx context.Context, i int) (x sample, err error) {
		name := filepath.Join(dir, fmt.Sprintf("%08d.gob", i))
		kept, _ := os.ReadFile(name) // what cannot be read is decoded again
		if n := len(kept) - 4; n > 0 {
			sum := binary.LittleEndian.Uint32(kept[n:])
			if crc32.ChecksumIEEE(kept[:n]) == sum {
				err = gob.NewDecoder(bytes.NewReader(kept[:n])).Decode(&x)
				return x, err
			}
		}
		if x, err = slow.Get(ctx, i); err == nil { // an error is not kept
			if err := keep(name, x); err != nil {
				warning.Do(func() { log.Print("samples are not kept: ", err) })
			}
		}
		return x, err
	})
	augmented := Transform(cached, func(ctx context.Context, x sample) (sample, error) {
		x.Data[0] += float32(Rand(ctx).IntN(10)) // x is this call's own
		return x, nil
	})
	loader, err := New(augmented, Stack[float32], Options{BatchSize: 3, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for epoch := range 3 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			fmt.Println(batch.Data, err, "decoded so far:", decoded.Load())
		}
		err := os.Truncate(filepath.Join(dir, "00000002.gob"), 20) // a loss of power
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// [4.5 2 7 4.5 8 6] <nil> decoded so far: 3
	// [10.5 2 4 4.5 5 6] <nil> decoded so far: 4
	// [3.5 2 8 4.5 6 6] <nil> decoded so far: 5
}

// A data set is written as shards of limited size: when one is full, the next
// begins. The folder is renamed when all of them are written, so nobody trains
// on a part of the data. The errors of every close count: a full disk may show
// only there. After any error, also of a record that Write refuses, and after a
// kill, the folder train.part is left, into which no other process writes:
// delete it, and begin again. The samples come from a stream, here by two
// workers, and in random order, since a shard is read from front to back. Write
// at least as many shards as there will be ranks.
func ExampleTarWriter_rollingShards() {
	parent, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(parent)
	// The first that is reached ends a shard. Often they are 10,000 and 1 <<
	// 30.
	const maxRecords, maxBytes = 3, 20

	writeShards := func(dir string, records iter.Seq2[Record, error]) error {
		if err := os.Mkdir(dir+".part", 0o777); err != nil { // an error if there is one
			return err
		}
		next, stop := iter.Pull2(records)
		defer stop()
		r, err, more := next()
		for k := 0; more; k++ {
			file, failed := os.Create(filepath.Join(dir+".part", fmt.Sprintf("train-%06d.tar", k)))
			if failed != nil {
				return failed
			}
			buffer := bufio.NewWriterSize(file, 1<<20)
			w := NewTarWriter(buffer)
			for n, size := 0, 0; more && failed == nil && n < maxRecords && size < maxBytes; n++ {
				failed = err
				if failed == nil {
					failed = w.Write(r)
				}
				for _, f := range r.Files {
					size += len(f.Data)
				}
				r, err, more = next()
			}
			failed = errors.Join(failed, w.Close(), buffer.Flush(), file.Sync(), file.Close())
			if failed != nil {
				return failed
			}
		}
		return os.Rename(dir+".part", dir) // an error if there are files in dir
	}

	texts := Slice[string]{"cat", "a text that is long", "cow", "dog", "goat", "pig", "rat"}
	record := func(_ context.Context, i int) (Record, error) {
		files := []File{{Name: "txt", Data: []byte(texts[i])}}
		return Record{Key: fmt.Sprintf("%08d", i), Files: files}, nil
	}
	records := Map(Indices(Random(texts.Len(), 1)), 2, record)
	dir := filepath.Join(parent, "train")
	if err := writeShards(dir, records.Epoch(context.Background(), 0)); err != nil {
		log.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.tar")) // Expand lists those of a server
	if err != nil {
		log.Fatal(err)
	}
	stream, err := Tar(names, TarOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range stream.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s %s\n", filepath.Base(r.Shard), r.Key, r.Get("txt"))
	}
	// Output:
	// train-000000.tar 00000000 cat
	// train-000000.tar 00000005 pig
	// train-000000.tar 00000003 dog
	// train-000001.tar 00000001 a text that is long
	// train-000001.tar 00000006 rat
	// train-000002.tar 00000004 goat
	// train-000002.tar 00000002 cow
}

// # README.md, the lesson, and batches that are served

// ## README.md and the lesson

// TestMain says what is missing if the .go files were copied alone.
func TestMain(m *testing.M) {
	if _, err := os.Stat("testdata/cursors.json"); err != nil {
		fmt.Fprintf(os.Stderr, "%v\nthe tests need the folder testdata of this package: copy it, too\n", err)
		os.Exit(1)
	}
	flag.Parse()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		defer server.Close()
		_, err = net.Dial("tcp", server.Addr().String())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\nthis machine has no loopback interface, so what reads from the web is skipped\n", err)
		skip := flag.Lookup("test.skip").Value
		must(0, skip.Set(strings.TrimPrefix(skip.String()+"|"+fromTheWeb, "|")))
	}
	m.Run()
}

// fromTheWeb matches the tests and Examples that need a web server on this
// machine.
const fromTheWeb = "^Test(Web.*|Secrets|OpenShard|ServedPython)$|^Example(OpenShard_bearerToken|" +
	"Func_remoteRecords|Opener_cacheOnDisk|DataLoader_Batch_served|NewBatchFunc_served)$"

// TestReadme builds the program of README.md in a module with a copy of this
// package, and runs it, also with the cursors that it prints, and the program
// that trains. Both print what README.md shows. What README.md and speed.md
// link to, what their commands and the tables of speed name, and every test,
// benchmark and Example that they or a comment of this file name, must exist.
func TestReadme(t *testing.T) {
	module := fstest.MapFS{"go.mod": {Data: []byte("module example.org/trainer\n\ngo 1.25\n")}}
	names, source := declared(t)
	for name, text := range source {
		module["dataloader/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	readme := string(must(os.ReadFile("README.md")))
	mentioned := regexp.MustCompile("`(?:Test|Fuzz|Benchmark)\\w+`").FindAllString(readme, -1)
	speed := string(must(os.ReadFile("testdata/speed.md")))
	texts := readme + speed + source["dataloader_test.go"]
	mentioned = append(mentioned, regexp.MustCompile(`\bExample(_|[A-Z])\w*`).FindAllString(texts, -1)...)
	for _, name := range mentioned {
		if !names[strings.Trim(name, "`")] {
			t.Errorf("there is no %s", name)
		}
	}
	for folder, text := range map[string]string{".": readme, "testdata": speed} {
		for _, link := range regexp.MustCompile(`\]\(([\w/.]+)\)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(folder, link[1])); err != nil {
				t.Error(err)
			}
		}
	}
	headings := strings.ReplaceAll(strings.ToLower(readme), " ", "-")
	for _, link := range regexp.MustCompile(`\]\(#([\w-]+)\)`).FindAllStringSubmatch(readme, -1) {
		equal(t, "whether there is the heading "+link[1], strings.Contains(headings, "\n##-"+link[1]+"\n"), true)
	}
	commands := regexp.MustCompile("(?m)^```\n((?:[^`\n].*\n)+)```|`((?:go|awk|python3) [^`\n]+)`")
	for _, found := range commands.FindAllStringSubmatch(speed, -1) {
		checkCommand(t, names, strings.TrimSpace(found[1]+found[2]))
	}
	for _, found := range commands.FindAllStringSubmatch(readme, -1) {
		for command := range strings.Lines(found[1] + found[2]) {
			t.Log("$", strings.TrimSpace(command)) // .ci/run reads the log
			checkCommand(t, names, strings.TrimSpace(command))
		}
	}
	if testing.Short() {
		return
	}
	outputs := strings.Split(readme, "```text\n")[1:]
	printed, _, _ := strings.Cut(outputs[0], "```")
	shown, _, _ := strings.Cut(outputs[1], "```")
	training := exec.Command("go", "run", "./testdata/recipes/digits")
	trained, err := training.CombinedOutput()
	equal(t, fmt.Sprintf("%v: %s", training, trained), err, nil)
	for line := range strings.Lines(shown) {
		equal(t, fmt.Sprintf("whether %v shows %s", training, line), strings.Contains(string(trained), "\n"+line), true)
	}
	tables, measured := "", map[string]bool{}
	for _, table := range strings.Split(readme+speed, "| `-bench` |\n")[1:] {
		table, _, _ = strings.Cut(table, "\n\n")
		tables += table + "\n"
	}
	for row := range strings.Lines(tables) {
		m := regexp.MustCompile("\\| `([\\w/-]+)` \\|\n$").FindStringSubmatch(row)
		failIf(t, m == nil && !strings.HasPrefix(row, "|---"), "no benchmark: %s", row)
		if m == nil || measured[m[1]] {
			continue
		}
		measured[m[1]] = true
		bench := exec.Command(os.Args[0], "-test.run=^$", "-test.v", "-test.benchtime=1x", "-test.bench="+m[1])
		out, found := must(bench.StdoutPipe()), false
		equal(t, bench.String(), bench.Start(), nil)
		for lines := bufio.NewScanner(out); !found && lines.Scan(); {
			found = strings.Count(lines.Text(), "/") >= strings.Count(m[1], "/") && strings.HasPrefix(lines.Text(), "Benchmark")
		}
		equal(t, "whether a benchmark runs by "+bench.String(), found, true)
		bench.Process.Kill() // the figures are not asked for
		bench.Wait()
	}
	program, _, _ := strings.Cut(strings.Split(readme, "```go\n")[1], "```")
	module["program/main.go"] = &fstest.MapFile{Data: []byte(program)}
	dir := t.TempDir()
	must(0, os.CopyFS(dir, module))
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		equal(t, fmt.Sprintf("%s: %s", name, out), err, nil)
		return string(out)
	}
	run("go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "bin")+"/", "./...")
	equal(t, "what the program prints", run(filepath.Join(dir, "bin/program")), printed)
	lines := slices.Collect(strings.Lines(printed))
	for i, line := range lines {
		_, cursor, _ := strings.Cut(strings.TrimSpace(line), "] ")
		rest := run(filepath.Join(dir, "bin/program"), cursor)
		equal(t, "what the program prints after "+cursor, rest, strings.Join(lines[i+1:], ""))
	}
}

// checkCommand checks that the tests, flags and files that a command names
// exist.
func checkCommand(t *testing.T, names map[string]bool, command string) {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(command, "'", ""))
	for i, word := range words {
		word = strings.TrimPrefix(word, "dataloader/") // the folder of a copy
		name, isFlag := strings.CutPrefix(word, "-")
		kind := map[string]string{"run": "^(Test|Example|Fuzz)", "bench": "^Benchmark", "fuzz": "^Fuzz"}[name]
		switch {
		case isFlag && kind != "" && words[i+1] != "^$":
			top, _, _ := strings.Cut(words[i+1], "/") // the rest names a part of a benchmark
			kind, pattern := regexp.MustCompile(kind), regexp.MustCompile(top)
			found := slices.DeleteFunc(slices.Collect(maps.Keys(names)), func(name string) bool {
				return !kind.MatchString(name) || !pattern.MatchString(name)
			})
			if len(found) == 0 || name == "fuzz" && len(found) > 1 {
				t.Errorf("%s: %s %s means %q", command, word, words[i+1], found)
			}
		case isFlag && words[1] == "test" && flag.Lookup("test."+name) == nil && flag.Lookup(name) == nil:
			t.Errorf("%s: there is no flag %s", command, word)
		case regexp.MustCompile(`^(\./)?testdata|\.(go|md|py)$`).MatchString(word) && words[i-1] != ">" && len(must(filepath.Glob(word))) == 0:
			t.Errorf("%s: there is no file %s", command, word)
		}
	}
}

// declared returns the names that the package declares, as in "Sampler" and
// "feistel.at", and its source files. In a copy of the folder it skips the
// test: what stands there is the owner's to decide.
func declared(t *testing.T) (names map[string]bool, source map[string]string) {
	if mod, _ := os.ReadFile("go.mod"); !regexp.MustCompile(`^module dataloader\s`).Match(mod) { // line ends may be "\r\n"
		t.Skip("this folder is a copy, and its texts are its owner's")
	}
	names, source = map[string]bool{}, map[string]string{}
	for _, name := range must(filepath.Glob("*.go")) {
		source[name] = string(must(os.ReadFile(name)))
		for _, decl := range must(parser.ParseFile(token.NewFileSet(), name, source[name], 0)).Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				receiver := ""
				if d.Recv != nil { // *engine[S]
					receiver = regexp.MustCompile(`\w+`).FindString(types.ExprString(d.Recv.List[0].Type)) + "."
				}
				names[receiver+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						names[s.Name.Name] = true
					}
				}
			}
		}
	}
	return names, source
}

// eachNode calls f with every node of every function in source.
func eachNode(source map[string]string, f func(in *ast.FuncDecl, n ast.Node)) {
	for name, text := range source {
		for _, decl := range must(parser.ParseFile(token.NewFileSet(), name, text, 0)).Decls {
			if in, ok := decl.(*ast.FuncDecl); ok {
				ast.Inspect(in, func(n ast.Node) bool {
					f(in, n)
					return true
				})
			}
		}
	}
}

// TestFormats checks that a function with a format passes it on as it is.
// Otherwise go vet, and with it go test, would not check the function's calls.
func TestFormats(t *testing.T) {
	_, source := declared(t)
	given, passed := map[string]bool{}, map[string]bool{}
	eachNode(source, func(in *ast.FuncDecl, n ast.Node) {
		switch n := n.(type) {
		case *ast.FuncType:
			if strings.Contains(types.ExprString(n), "format string, args ...any)") {
				given[in.Name.Name] = true
			}
		case *ast.CallExpr:
			if strings.HasSuffix(types.ExprString(n), "(format, args...)") ||
				strings.HasSuffix(types.ExprString(n), ", format, args...)") {
				passed[in.Name.Name] = true
			}
		}
	})
	equal(t, "the functions that pass a format on", passed, given)
}

// TestExampleHelpers checks that the comment of each Example names what it uses
// of dataloader_test.go: whoever copies the Example must copy that, too.
func TestExampleHelpers(t *testing.T) {
	_, source := declared(t)
	file := must(parser.ParseFile(token.NewFileSet(), "", source["dataloader_test.go"], parser.ParseComments))
	uses := map[string][]string{} // what a declaration uses of the file, its methods included
	for _, decl := range file.Decls {
		var specs []ast.Node
		var names []string
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = strings.Trim(types.ExprString(d.Recv.List[0].Type), "*")
				name, _, _ = strings.Cut(name, "[")
			}
			specs, names = append(specs, d), append(names, name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					specs, names = append(specs, spec), append(names, spec.Name.Name)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						specs, names = append(specs, spec), append(names, name.Name)
					}
				}
			}
		}
		for i, spec := range specs {
			ast.Inspect(spec, func(n ast.Node) bool {
				if name, ok := n.(*ast.Ident); ok && name.Obj != nil && name.Obj == file.Scope.Lookup(name.Name) {
					uses[names[i]] = append(uses[names[i]], name.Name)
				}
				return true
			})
		}
	}
	for _, decl := range file.Decls {
		example, ok := decl.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(example.Name.Name, "Example") {
			continue
		}
		words := strings.FieldsFunc(example.Doc.Text(), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) })
		needed := []string{example.Name.Name}
		for i := 0; i < len(needed); i++ {
			for _, name := range uses[needed[i]] {
				if !slices.Contains(needed, name) {
					needed = append(needed, name)
					if !slices.Contains(words, name) {
						t.Errorf("%s needs %s, for %s, which its comment does not name", example.Name, name, needed[i])
					}
				}
			}
		}
	}
}

// TestLesson checks testdata/lesson.md: each Predict has a Run, a Read and a
// Why, what a Read or a row of the way of a batch names is declared, each
// command runs something, each line that a Break quotes stands in its function,
// and each link leads to a file or a heading. Each diff makes the next of the
// growing Examples from the one before.
func TestLesson(t *testing.T) {
	names, source := declared(t)
	lesson := string(must(os.ReadFile("testdata/lesson.md")))
	// Now an item stands on one line, without its marks.
	lesson = strings.NewReplacer("\r", "", "\n  ", " ", "**", "", "`", `"`).Replace(lesson)
	all := func(pattern, text string) [][]string {
		return regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(text, -1)
	}
	exercises := strings.Split(lesson, "\n- Predict: ")[1:]
	failIf(t, len(exercises) == 0, "no exercises")
	for _, exercise := range exercises {
		for _, part := range []string{"\n- Run: \"go test -", "\n- Read: \"", "\n<details><summary>Why</summary>\n\n"} {
			equal(t, fmt.Sprintf("%.40s: occurrences of %q", exercise, part), strings.Count(exercise, part), 1)
		}
	}
	links := map[string]bool{} // to headings
	for _, heading := range all("^## (.+)", lesson) {
		links["#"+strings.NewReplacer(",", "", ".", "", " ", "-").Replace(strings.ToLower(heading[1]))] = true
	}
	for _, link := range all(`\]\((.+?)\)`, lesson) {
		_, err := os.Stat("testdata/" + link[1])
		onPage := strings.HasPrefix(link[1], "http://localhost:8080/?") // TestPlay asks for it
		failIf(t, err != nil && !links[link[1]] && !onPage, "%s leads nowhere", link[0])
	}
	names["TestMyOrder"] = true // in testdata/inorder_test.go.txt
	for _, command := range all(`"(go test -[^"]+)"`, lesson) {
		checkCommand(t, names, command[1])
	}
	for _, line := range all(`^(- Read|\| \w+): .*`, lesson) {
		for _, name := range all(`"([\w.]+)"`, line[0]) {
			failIf(t, !names[name[1]], "%s: there is no %s", line[0], name[1])
		}
	}
	checkGrowth(t, string(must(os.ReadFile("testdata/lesson.md"))), source["dataloader_test.go"])
	for _, item := range all("^- Break: .*", lesson) {
		pattern := `in "(?:(\w+)\.)?(\w+)" (?:replace|move|delete)(?: the second)? "([^"]+)"`
		part := all(pattern, item[0])[0] // type, function and code
		function := regexp.MustCompile(fmt.Sprintf(`(?ms)^func (\(\w+ \*?%s(\[\w+\])?\) )?%s\W.*?^}`, part[1], part[2]))
		stands := strings.Contains(function.FindString(fmt.Sprint(source)), part[3])
		failIf(t, !stands, "%s: there is no such code", item[0])
	}
}

// checkGrowth applies each diff of the lesson to the loader of one Example, and
// compares it with that of the next. Indentation and comments do not count. The
// first program of the lesson is the beginning: its loop is the loader of the
// first Example. That of the last Example is the one before it, unchanged.
func checkGrowth(t *testing.T, lesson, source string) {
	t.Helper()
	clean := func(text string) (lines string) {
		for line := range strings.Lines(strings.ReplaceAll(text, "\r", "")) {
			if line, _, _ = strings.Cut(line, "//"); strings.TrimSpace(line) != "" {
				lines += strings.Join(strings.Fields(line), " ") + "\n"
			}
		}
		return lines
	}
	loaderOf := func(name string) string {
		_, text, _ := strings.Cut(source, "\nfunc "+name+"() {\n")
		text, _, found := strings.Cut(text, "\n\t}\n")
		failIf(t, !found, "there is no %s", name)
		return clean(text)
	}
	source = strings.ReplaceAll(source, "\r", "")
	program := loaderOf("Example_inTenLines")
	next := []string{"Example_oneWorker", "Example_outOfOrder", "Example_inFiftyLines"}
	diffs := regexp.MustCompile("(?ms)^```diff\r?\n(.*?)^```").FindAllStringSubmatch(lesson, -1)
	equal(t, "diffs", len(diffs), len(next))
	for i, diff := range diffs {
		for hunk := range strings.SplitSeq(strings.ReplaceAll(diff[1], "\r", ""), "…\n") {
			var before, after string
			for line := range strings.Lines(hunk) {
				if line[0] != '+' {
					before += line[1:]
				}
				if line[0] != '-' {
					after += line[1:]
				}
			}
			equal(t, "places of\n"+hunk, strings.Count(program, clean(before)), 1)
			program = strings.Replace(program, clean(before), clean(after), 1)
		}
		equal(t, next[i], program, loaderOf(next[i]))
	}
	equal(t, "Example_resumes", loaderOf("Example_resumes"), program)
	exercise := strings.ReplaceAll(string(must(os.ReadFile("testdata/inorder_test.go.txt"))), "\r", "")
	whole := strings.Contains(clean(exercise), loaderOf("Example_outOfOrder"))
	equal(t, "whether testdata/inorder_test.go.txt has the loader to begin with", whole, true)
}

// ## Batches that are served

// A fleet is a balancer of servers of batches, by pipes instead of sockets, for
// bubbles. A connection leads to the next server that lives.
type fleet struct {
	mu      sync.Mutex
	servers []*pipeServer // nil if it was killed
	dialled int
	closing bool // whether each request has a new connection
}

// A pipeServer is a server, and the listener of its pipes.
type pipeServer struct {
	http.Server
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (s *pipeServer) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *pipeServer) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *pipeServer) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// start starts server number i.
func (f *fleet) start(i int, handler http.Handler) {
	s := &pipeServer{conns: make(chan net.Conn), closed: make(chan struct{})}
	s.Handler = handler
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers = append(f.servers, make([]*pipeServer, max(0, i+1-len(f.servers)))...)
	f.servers[i] = s
	go s.Serve(s)
}

// kill ends server i and its connections, as kill -9 does.
func (f *fleet) kill(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.servers[i] != nil {
		f.servers[i].Server.Close()
		f.servers[i] = nil
	}
}

// dial connects to a server.
func (f *fleet) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range f.servers {
		f.dialled++
		if s := f.servers[f.dialled%len(f.servers)]; s != nil {
			client, server := net.Pipe()
			s.conns <- server
			return client, nil
		}
	}
	return nil, syscall.ECONNREFUSED
}

// transport is a client's way to the fleet.
func (f *fleet) transport(workers int) *http.Transport {
	return &http.Transport{
		DialContext: f.dial, MaxIdleConnsPerHost: workers, DisableKeepAlives: f.closing,
	}
}

// startFleet starts servers with these handlers, until the test ends.
func startFleet(t *testing.T, handlers ...http.Handler) *fleet {
	f := new(fleet)
	for i, handler := range handlers {
		f.start(i, handler)
	}
	t.Cleanup(func() {
		for i := range f.servers {
			f.kill(i)
		}
	})
	return f
}

// encodeInts is the encode of a server of integers.
func encodeInts(dst []byte, samples []int) ([]byte, error) {
	list := make([]int64, len(samples))
	for i, x := range samples {
		list[i] = int64(x)
	}
	return appendArray(dst[:0], []int{len(list)}, list)
}

// decodeInts is the decode of its client.
func decodeInts(dst Tensor[int64], body []byte) (Tensor[int64], error) {
	batch, rest, err := cutArray(dst, body)
	return batch, cmp.Or(err, errorIf(len(rest) > 0, "%d bytes are left", len(rest)))
}

// served runs the loop of a training from a step on until another, and returns
// what it gets.
func (f *fleet) served(
	t *testing.T, tag string, from, to int, opts Options,
) (all []string, client *batchClient) {
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	client = newBatchClient("http://fleet/path", tag, opts.Workers, stop)
	transport := f.transport(opts.Workers)
	client.http.Transport = transport
	defer transport.CloseIdleConnections()
	loader, err := servedBatches(ctx, client, decodeInts, opts)
	if err != nil {
		return []string{"error"}, client
	}
	at := loader.At(0, from)
	for batch, err := range loader.Run(ctx, &at) {
		switch {
		case isSampleError(err):
			equal(t, "an error that may be skipped", errors.Is(err, errServed), true)
			all = append(all, "skipped")
		case err != nil:
			return append(all, "error"), client
		default:
			all = append(all, fmt.Sprint(batch.Data))
			loader.Recycle(batch)
		}
		if from++; from == to {
			break
		}
	}
	equal(t, "the context after a break", ctx.Err(), nil)
	return all, client
}

// serveInts is the handler of a server of integers.
func serveInts(data Dataset[int], opts Options) http.Handler {
	return http.StripPrefix("/path", must(serveBatches(data, encodeInts, opts, "1", 2)))
}

// TestServed asks fleets in which something goes wrong for the first 12 steps.
// They come as from the loader itself, as soon as can be; or the loop ends; or
// it gets what it may skip.
func TestServed(t *testing.T) {
	opts := Options{BatchSize: 2, Shuffle: true, Seed: 1}
	want := []string{}
	for epoch := range 3 {
		for batch := range newLoader(t, numbers(7), opts).Epoch(t.Context(), epoch) {
			want = append(want, fmt.Sprint(batch))
		}
	}
	skipping := func(bad ...int) []string {
		list := slices.Clone(want)
		for _, step := range bad {
			list[step] = "skipped"
		}
		return list
	}
	var sound http.Handler // made anew in each bubble
	// once returns a server that answers the first request for a path
	// otherwise.
	once := func(path string, first http.HandlerFunc) http.Handler {
		var asked atomic.Bool
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/path"+path && !asked.Swap(true) {
				first(w, r)
			} else {
				sound.ServeHTTP(w, r)
			}
		})
	}
	cutAfter := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { sound.ServeHTTP(&breaking{w, n}, r) }
	}
	hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	says := func(status int, tag string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", tag)
			http.Error(w, "a proxy", status)
		}
	}
	type fault struct {
		name  string
		takes time.Duration // -1 if it does not matter
		want  []string
		serve func() []http.Handler
	}
	one := func(name string, takes time.Duration, want []string, serve func() http.Handler) fault {
		return fault{name, takes, want, func() []http.Handler { return []http.Handler{serve()} }}
	}
	first := func(name string, takes time.Duration, path string, answer http.HandlerFunc) fault {
		return one(name, takes, want, func() http.Handler { return once(path, answer) })
	}
	slow := func(i int) time.Duration { return time.Duration(i%3) * time.Second }
	for _, c := range []fault{
		one("one server", 0, want, func() http.Handler { return sound }),
		{"two servers", 0, want, func() []http.Handler { return []http.Handler{sound, sound} }},
		one("slow samples", -1, want, func() http.Handler {
			return serveInts(&probe{n: 7, takes: slow}, opts)
		}),
		first("cut before an array", time.Second, "/batch/5", cutAfter(0)),
		first("cut in an array", time.Second, "/batch/5", cutAfter(130)),
		first("cut in the first", time.Second, "/batch/0", cutAfter(143)),
		first("a request that hangs", time.Minute+time.Second, "/batch/5", hang),
		first("a server that is not ready", time.Second, "/ready", says(503, `"x"`)),
		first("a proxy without a server", time.Second, "/batch/5", says(502, "")),
		first("a proxy that fails itself", time.Second, "/batch/5", says(500, "")),
		first("a page of somebody else", time.Second, "/batch/5", says(200, `"x"`)),
		one("a batch that fails for ever", 6*time.Second, skipping(1, 5, 8), func() http.Handler {
			return serveInts(failing(7, 3), opts)
		}),
		one("a proxy that always fails", 45*time.Second, append(want[:5:5], "error"), func() http.Handler {
			failing := http.NewServeMux()
			failing.Handle("/", sound)
			failing.HandleFunc("/path/batch/5", says(500, ""))
			return failing
		}),
		{"no server", 45 * time.Second, []string{"error"}, func() []http.Handler { return nil }},
		one("a server that always hangs", 645*time.Second, []string{"error"}, func() http.Handler {
			return http.HandlerFunc(hang)
		}),
		one("a server that is none", 45*time.Second, []string{"error"}, http.NotFoundHandler),
	} {
		runRowInBubble(t, c.name, func(t *testing.T) {
			sound = serveInts(numbers(7), opts)
			fleet, start := startFleet(t, c.serve()...), time.Now()
			got, _ := fleet.served(t, "", 0, len(want), Options{Workers: 3})
			equal(t, "steps", got, c.want)
			if c.takes >= 0 {
				equal(t, "time", time.Since(start), c.takes)
			}
		})
	}
	inBubble(t, func(t *testing.T) { // one connection, first to a server that fails from step 5 on
		sound = serveInts(numbers(7), opts)
		failing := http.NewServeMux()
		failing.Handle("/", sound)
		failing.HandleFunc("/path/batch/5", says(503, ""))
		fleet := startFleet(t, sound, failing)
		got, _ := fleet.served(t, "", 0, len(want), Options{})
		equal(t, "steps with another connection", got, want)
	})
}

// TestServedArrays checks that an array is what Decode reads, that cutArray
// cuts it off again, and that neither takes what is damaged.
func TestServedArrays(t *testing.T) {
	first := must(appendArray(nil, []int{2, 3}, []float32{1, 2}, []float32{3, 4, 5, 6}))
	want := Tensor[float32]{[]float32{1, 2, 3, 4, 5, 6}, []int{2, 3}}
	equal[any](t, "decoded", must(Decode("npy", first)), want)
	both := must(appendArray(slices.Clone(first), []int{1}, []bool{true}))
	got, rest, err := cutArray(Tensor[float32]{}, both)
	equal(t, "error", err, nil)
	equal(t, "the first", got, want)
	equal(t, "the second", rest, both[len(first):])
	equal(t, "where its data are, from a multiple of 64 on", (len(both)-1)%64, 0)
	for n := range first {
		failIf(t, errorOf2(cutArray(got, first[:n])) == nil, "%d bytes are an array", n)
	}
	huge := bytes.Replace(first, []byte("(2,3,)"), []byte("(8,8,8,8,8,8,)"), 1)
	failIf(t, errorOf2(cutArray(got, huge)) == nil, "a shape without data")
	failIf(t, errorOf2(cutArray(Tensor[int32]{}, first)) == nil, "floats as integers")
	saysAll(t, errorOf(appendArray(nil, []int{2, 2}, []uint8{1, 2, 3})), "[2 2] does not fit 3")
	failIf(t, errorOf(appendArray(nil, []int{1}, []int{1})) == nil, "elements of no fixed size")
}

// errorOf2 is the error of a call with three results.
func errorOf2[T, U any](_ T, _ U, err error) error { return err }

// TestServedTags checks that servers have the same tag only if they have the
// same batches, and that a client whose servers are replaced by others ends its
// loop at once.
func TestServedTags(t *testing.T) {
	tagOf := func(n int, opts Options, version string) string {
		w := httptest.NewRecorder()
		handler := must(serveBatches(numbers(n), encodeInts, opts, version, 1))
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/ready", nil))
		return w.Header().Get("ETag")
	}
	opts := Options{BatchSize: 2, Seed: 1, DataVersion: "a"}
	tag := tagOf(10, opts, "1")
	tags := map[string]int{tag: -1, tagOf(9, opts, "1"): -2, tagOf(10, opts, "2"): -3}
	changes := []func(o *Options){
		func(o *Options) { o.BatchSize = 5 },
		func(o *Options) { o.Seed = 2 },
		func(o *Options) { o.DataVersion = "b" },
		func(o *Options) { o.DropLast = true },
		func(o *Options) { o.Shuffle = true },
		func(o *Options) { o.Sampler = Random(10, 2) },
		func(o *Options) { o.Sampler = Random(10, 3) },
		func(o *Options) { o.BatchSize, o.BatchSampler = 0, Batches(Random(10, 2), 2, false) },
		func(o *Options) { o.Rank = Rank{0, 2} },
		func(o *Options) { o.Rank = Rank{1, 2} },
		func(o *Options) { o.Tail = UnevenTail },
	}
	for i, change := range changes {
		o := opts
		change(&o)
		tags[tagOf(10, o, "1")] = i
	}
	equal(t, "different tags", len(tags), 3+len(changes))
	opts.Workers, opts.Prefetch = 2, 3
	equal(t, "the tag with workers", tagOf(10, opts, "1"), tag)
	for _, o := range []Options{{OnError: dropBad}, {Unordered: true, Workers: 2}} {
		saysAll(t, errorOf(serveBatches(numbers(10), encodeInts, o, "1", 1)), "neither OnError")
	}
	inBubble(t, func(t *testing.T) {
		start := time.Now()
		fleet := startFleet(t, serveInts(numbers(10), Options{}))
		got, client := fleet.served(t, "", 0, 3, Options{})
		fleet.kill(0)
		fleet.start(0, serveInts(numbers(10), Options{Seed: 1}))
		resumed, _ := fleet.served(t, client.tag, 3, 6, Options{})
		fleet.start(1, serveInts(numbers(10), Options{}))
		fleet.closing = true
		mixed, _ := fleet.served(t, "", 3, 6, Options{Workers: 3})
		equal(t, "the last step from servers of two orders", mixed[len(mixed)-1], "error")
		equal(t, "steps", append(got, resumed...), []string{"[0]", "[1]", "[2]", "error"})
		equal(t, "time", time.Since(start), 0)
	})
}

// TestServedRanks checks that ranks get the steps in turn.
func TestServedRanks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		fleet := startFleet(t, serveInts(numbers(100), Options{}))
		for rank := range 3 {
			got, _ := fleet.served(t, "", 10, 12, Options{Workers: 2, Rank: Rank{rank, 3}})
			equal(t, "steps", got, []string{fmt.Sprint([]int{30 + rank}), fmt.Sprint([]int{33 + rank})})
		}
	})
}

// TestServeBatches asks a server itself, by one connection after the other.
func TestServeBatches(t *testing.T) {
	// ask writes a request to a new connection, and returns the response.
	ask := func(f *fleet, path string) (net.Conn, *http.Response) {
		conn := must(f.dial(t.Context(), "", ""))
		must(fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path))
		return conn, must(http.ReadResponse(bufio.NewReader(conn), nil))
	}
	status := func(f *fleet, path string) int {
		conn, resp := ask(f, path)
		must(io.Copy(io.Discard, resp.Body))
		conn.Close()
		failIf(t, resp.ContentLength < 1, "%s: the length is %d", path, resp.ContentLength)
		return resp.StatusCode
	}
	var fresh, active atomic.Int64 // batches that were built in no memory, and requests under way
	encode := func(dst []byte, samples []int) ([]byte, error) {
		if dst == nil {
			fresh.Add(1)
		}
		return append(dst[:0], make([]byte, 100_000)...), nil
	}
	row := func(name string, data Dataset[int], atOnce int, test func(t *testing.T, f *fleet)) {
		runRowInBubble(t, name, func(t *testing.T) {
			fresh.Store(0)
			handler := must(serveBatches(data, encode, Options{}, "1", atOnce))
			test(t, startFleet(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				active.Add(1)
				defer active.Add(-1)
				handler.ServeHTTP(w, r)
			})))
		})
	}
	row("statuses", failing(3, 2), 1, func(t *testing.T, f *fleet) {
		for path, want := range map[string]int{
			"/ready": 200, "/batch/0": 200, "/batch/4": 200, "/batch/2": 500, "/batch/5": 500,
			"/batch/-1": 400, "/batch/x": 400, "/batch/1.0": 400,
			"/batch/99999999999999999999": 400,
			"/batch/":                     404, "/": 404, fmt.Sprint("/batch/", math.MaxInt-1): 200,
		} {
			equal(t, path, status(f, path), want)
		}
	})
	row("no samples", numbers(0), 1, func(t *testing.T, f *fleet) {
		equal(t, "ready", status(f, "/ready"), 200)
		equal(t, "batch", status(f, "/batch/0"), 404)
	})
	// A minute after the load the deaf client has lost its place, and memory.
	slow := func(int) time.Duration { return 30 * time.Second }
	row("a client that reads nothing", &probe{n: 9, takes: slow}, 1, func(t *testing.T, f *fleet) {
		start := time.Now()
		deaf, _ := ask(f, "/batch/0")
		equal(t, "another", status(f, "/batch/1"), 200)
		equal(t, "time", time.Since(start), 120*time.Second)
		_, err := io.Copy(io.Discard, deaf)
		equal(t, "the connection's end", err, nil)
		equal(t, "one more", status(f, "/batch/2"), 200)
		equal(t, "batches in new memory", fresh.Load(), 2)
	})
	row("clients that go away", &probe{n: 9, takes: slow}, 1, func(t *testing.T, f *fleet) {
		start := time.Now()
		var conns []net.Conn
		for path := range strings.FieldsSeq("/batch/0 /batch/1 /batch/2") { // one loads, two wait
			conns = append(conns, must(f.dial(t.Context(), "", "")))
			must(fmt.Fprintf(conns[len(conns)-1], "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path))
			synctest.Wait()
		}
		for left := 2; left >= 0; left-- {
			conns[left].Close()
			synctest.Wait()
			equal(t, "requests under way", int(active.Load()), left)
		}
		equal(t, "time", time.Since(start), 0)
	})
	row("two at once", &probe{n: 9, takes: slow}, 2, func(t *testing.T, f *fleet) {
		start := time.Now()
		var all sync.WaitGroup
		for k := range 6 {
			all.Go(func() { equal(t, "status", status(f, fmt.Sprint("/batch/", k)), 200) })
		}
		all.Wait()
		equal(t, "time", time.Since(start), 90*time.Second)
		failIf(t, fresh.Load() > 2, "%d batches in new memory, want at most 2", fresh.Load())
	})
	row("a connection with pauses", numbers(9), 1, func(t *testing.T, f *fleet) {
		client := http.Client{Transport: f.transport(1)}
		defer client.CloseIdleConnections()
		for _, path := range []string{"ready", "batch/0", "batch/x", "batch/1", "ready"} {
			resp := must(client.Get("http://fleet/" + path))
			_, err := io.Copy(io.Discard, resp.Body)
			equal(t, path, err, nil)
			resp.Body.Close()
			time.Sleep(2 * time.Minute) // longer than a response has
		}
		equal(t, "connections", f.dialled, 1)
	})
}

// TestServeUntil checks that a server that is told to end answers the requests
// under way, if they end within 20 seconds, and takes no others.
func TestServeUntil(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Second, time.Hour} {
		inBubble(t, func(t *testing.T) {
			data := &probe{n: 9, takes: func(int) time.Duration { return takes }}
			s := &pipeServer{conns: make(chan net.Conn), closed: make(chan struct{})}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- serveUntil(ctx, s, serveInts(data, Options{})) }()
			conn, server := net.Pipe()
			s.conns <- server
			must(io.WriteString(conn, "GET /path/batch/1 HTTP/1.1\r\nHost: a\r\n\r\n"))
			synctest.Wait()
			stop()
			start := time.Now()
			_, failed := http.ReadResponse(bufio.NewReader(conn), nil)
			equal(t, "whether the request fails", failed != nil, takes > 20*time.Second)
			conn.Close()
			late := errors.Is(<-ended, context.DeadlineExceeded)
			equal(t, "whether time was over", late, failed != nil)
			failIf(t, time.Since(start) > 21*time.Second, "it takes %v", time.Since(start))
			_, open := <-s.closed
			equal(t, "whether the listener is open", open, false)
		})
	}
}

// TestServedTraining trains the model of Example_training on digits that are
// served: by one server without interruption, and by two behind a balancer. Of
// these one is killed between two batches, both are killed within a batch, and
// one starts again; and the training itself is killed, twice, and resumes from
// its checkpoint with other workers. The weights are the same, and those of a
// training that loads the digits itself.
func TestServedTraining(t *testing.T) {
	archive := digits("train")
	files, _, err := Folder(archive, "*/*.png")
	equal(t, "digits", err, nil)
	type digit = Pair[Tensor[float32], int]
	var decoded Slice[digit]
	for i := range files.Len() {
		file := must(files.Get(t.Context(), i))
		pixels := make([]float32, 16*16)
		for j, p := range must(png.Decode(must(archive.Open(file.First)))).(*image.Gray).Pix {
			pixels[j] = float32(p) / 255
		}
		decoded = append(decoded, digit{Tensor[float32]{pixels, []int{16, 16}}, file.Second})
	}
	shifted := Transform(decoded, func(ctx context.Context, d digit) (digit, error) {
		k := Rand(ctx).IntN(3)
		d.First.Data = slices.Concat(d.First.Data[k:], d.First.Data[:k])
		return d, nil
	})
	encode := func(dst []byte, samples []digit) ([]byte, error) {
		pixels, labels := [][]float32{}, []int64{}
		for _, s := range samples {
			pixels = append(pixels, s.First.Data)
			labels = append(labels, int64(s.Second))
		}
		dst, err1 := appendArray(dst[:0], []int{len(samples), 16, 16}, pixels...)
		dst, err2 := appendArray(dst, []int{len(samples)}, labels)
		return dst, errors.Join(err1, err2)
	}
	type batch = Pair[Tensor[float32], Tensor[int64]]
	decode := func(dst batch, body []byte) (_ batch, err error) {
		if dst.First, body, err = cutArray(dst.First, body); err == nil {
			dst.Second, _, err = cutArray(dst.Second, body)
		}
		return dst, err
	}
	opts := Options{BatchSize: 32, Shuffle: true, Seed: 1}
	const last = 4 * 18 // epochs of 18 steps
	type checkpoint struct {
		Model digitModel
		Step  int
		Tag   string
	}
	// train resumes a checkpoint in a bubble and returns the next one, at a
	// step that something happens at, or at the end. before is called before
	// each step.
	train := func(
		t *testing.T, f *fleet, saved []byte, workers, until int, before func(step int),
	) []byte {
		var c checkpoint
		equal(t, "checkpoint", json.Unmarshal(saved, &c), nil)
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		client := newBatchClient("http://fleet", c.Tag, workers, stop)
		transport := f.transport(workers)
		client.http.Transport = transport
		defer transport.CloseIdleConnections()
		loader := must(servedBatches(ctx, client, decode, Options{Workers: workers}))
		equal(t, "steps in an epoch", client.steps, 18)
		c.Tag = client.tag
		at := loader.At(0, c.Step)
		for batch, err := range loader.Run(ctx, &at) {
			failIf(t, err != nil, "step %d: %v", c.Step, err)
			labels := []int{}
			for _, label := range batch.Second.Data {
				labels = append(labels, int(label))
			}
			c.Model.learn(batch.First, labels)
			loader.Recycle(batch)
			if c.Step++; c.Step == until {
				break
			}
			before(c.Step)
		}
		return must(json.Marshal(c))
	}
	var whole, again []byte
	inBubble(t, func(t *testing.T) {
		server := must(serveBatches(shifted, encode, opts, "1", 2))
		whole = train(t, startFleet(t, server), []byte("{}"), 2, last, func(int) {})
	})
	inBubble(t, func(t *testing.T) {
		var f *fleet
		var within atomic.Int64 // requests for step 30, in which both servers are killed
		var serve func() http.Handler
		serve = func() http.Handler {
			server := must(serveBatches(shifted, encode, opts, "1", 2))
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/30") && within.Add(1) == 1 {
					w = &dying{w, func() { f.kill(0); f.kill(1) }}
					time.AfterFunc(20*time.Second, func() { f.start(0, serve()) })
				}
				server.ServeHTTP(w, r)
			})
		}
		f = startFleet(t, serve(), serve())
		again = train(t, f, []byte("{}"), 3, 9, func(int) {})
		again = train(t, f, again, 0, 50, func(step int) {
			if step == 20 {
				f.kill(1)
				f.start(1, serve())
			}
		})
		again = train(t, f, again, 4, last, func(int) {})
		equal(t, "requests in which servers were killed", within.Load() > 1, true)
	})
	var own digitModel
	loader := must(New(shifted, CollatePair(Stack[float32], List[int]), opts))
	for step := range last {
		batch := must(loader.Batch(t.Context(), step/18, step%18))
		own.learn(batch.First, batch.Second)
	}
	equal(t, "whether the weights are the same", bytes.Equal(again, whole), true)
	var c checkpoint
	equal(t, "checkpoint", json.Unmarshal(whole, &c), nil)
	equal(t, "whether they are the loader's", c.Model == own, true)
	equal(t, "steps", c.Step, last)
}

// A dying answer writes half of what it is given, and then its server dies.
type dying struct {
	http.ResponseWriter
	die func()
}

func (d *dying) Write(p []byte) (int, error) {
	d.ResponseWriter.Write(p[:len(p)/2])
	d.ResponseWriter.(http.Flusher).Flush()
	d.die()
	return 0, net.ErrClosed
}

var python = flag.String("python", "", "an interpreter that has NumPy, for TestServedPython")

// TestServedPython runs testdata/served.py, with torch if it is installed, on a
// server that answers every step once in vain: with a response that is cut, an
// error, or a connection that ends.
func TestServedPython(t *testing.T) {
	if *python == "" {
		t.Skip("it needs an interpreter that has NumPy, as -python names it; .ci/run does")
	}
	data := Func(50, func(_ context.Context, i int) (uint8, error) { return uint8(i), nil })
	encode := func(dst []byte, samples []uint8) ([]byte, error) {
		n := len(samples)
		dst, err1 := appendArray(dst[:0], []int{n}, samples) // the next array has to be aligned
		last := []float32{float32(samples[0])}
		dst, err2 := appendArray(dst, []int{n, 2, 3}, make([]float32, 6*n-1), last)
		dst, err3 := appendArray(dst, []int{0, n}, []int64{})
		return dst, errors.Join(err1, err2, err3)
	}
	sound := must(serveBatches(data, encode, Options{BatchSize: 7, Shuffle: true}, "1", 2))
	var asked sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		step, _ := strconv.Atoi(path.Base(r.URL.Path))
		count, _ := asked.LoadOrStore(step, new(atomic.Int64))
		switch again := count.(*atomic.Int64).Add(1)%2 == 0; {
		case again || path.Base(r.URL.Path) == "ready":
		case step%3 == 0:
			w = &breaking{w, 150}
		case step%3 == 1:
			w.Header().Set("ETag", r.Header.Get("If-Match"))
			http.Error(w, "once", http.StatusInternalServerError)
			return
		default:
			panic(http.ErrAbortHandler)
		}
		http.StripPrefix("/path", sound).ServeHTTP(w, r)
	}))
	defer server.Close()
	want := map[string]string{}
	loader := must(New(data, List[uint8], Options{BatchSize: 7, Shuffle: true}))
	for step := 3; step < 13; step++ {
		batch := must(loader.Batch(t.Context(), step/8, step%8))
		n := len(batch)
		floats := make([]byte, 24*n)
		binary.LittleEndian.PutUint32(floats[24*n-4:], math.Float32bits(float32(batch[0])))
		want[fmt.Sprint(step)] = fmt.Sprintf(
			"uint8 (%d,) %08x float32 (%d, 2, 3) %08x int64 (0, %d) 00000000",
			n, crc32.ChecksumIEEE(batch), n, crc32.ChecksumIEEE(floats), n)
	}
	cmd := exec.Command(*python, "testdata/served.py", server.URL+"/path", "3", "13", "0.001")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	failIf(t, err != nil, "%v: %v\n%s", cmd, err, &stderr)
	ways := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		equal(t, line, words[2], want[words[1]])
		ways[words[0]] = append(ways[words[0]], words[1])
	}
	for way, steps := range ways {
		t.Log("by", way)
		equal(t, "steps", steps, strings.Fields("3 4 5 6 7 8 9 10 11 12"))
	}
	equal(t, "by threads", ways["threads"] != nil, true)
}

// # The tests of the second reading

// ## dataset.go: files and folders

// TestFiles checks which files the patterns match, and that a folder that
// cannot be read is an error if it could have some.
func TestFiles(t *testing.T) {
	for patterns, want := range map[string]string{
		"":                   ".git/config a.txt b.png cat/.hidden cat/1.png cat/2.png cat/old/0.png dog/1.png dog/x/y/z.txt",
		"*.png":              "b.png",
		"*/*.png":            "cat/1.png cat/2.png dog/1.png",
		"**/*.png":           "b.png cat/1.png cat/2.png cat/old/0.png dog/1.png",
		"cat/**":             "cat/.hidden cat/1.png cat/2.png cat/old/0.png",
		"cat/**/*.png":       "cat/1.png cat/2.png cat/old/0.png",
		"**/x/**/z.*":        "dog/x/y/z.txt",
		"dog/1.png":          "dog/1.png",
		"[ab].* a.txt */1.*": "a.txt b.png cat/1.png dog/1.png",
	} {
		runRow(t, want, func(t *testing.T) {
			var names []string
			for _, file := range values(t, must(Files(tree(), strings.Fields(patterns)...))) {
				equal(t, "content", string(file.Data), "in "+file.Name)
				names = append(names, file.Name)
			}
			equal(t, patterns, strings.Join(names, " "), want)
		})
	}
	for pattern, denied := range map[string]bool{"*/*.png": true, "**/*.png": true, "*.png": false, "c*/*.png": false} {
		err := errorOf(Files(closedFS{tree(), "dog"}, pattern))
		equal(t, pattern+": whether it fails", err != nil, denied)
		equal(t, pattern+": whether it is denied", errors.Is(err, fs.ErrPermission), denied)
	}
	mixed := fstest.MapFS{"a/x/y/1": {}, "b/x": {}} // x is a folder, and a file
	for _, pattern := range []string{"*/x/*/1", "*/x/y/*"} {
		equal(t, pattern, must(Files(mixed, pattern)).Len(), 1)
	}
}

// TestFolder checks the classes, the labels and their order, that hidden names
// are left out at every depth, and that no file is opened.
func TestFolder(t *testing.T) {
	names, closed := fstest.MapFS{".git/7": {}}, closedFS{tree(), ".git"}
	for _, name := range strings.Fields("a.txt cat/2 cat/.3 cat/.old/1 cat/a/.4 cat/a/.b/5 cat/a/6. cat-b/1 cat0/1 dog/x/y/z") {
		names[name] = &fstest.MapFile{}
	}
	for _, c := range []struct {
		fsys           fs.FS
		patterns, want string
	}{
		{closedFS{names, ".git"}, "", "[cat cat-b cat0 dog] [{cat/2 0} {cat/a/6. 0} {cat-b/1 1} {cat0/1 2} {dog/x/y/z 3}] <nil>"},
		{names, "*/* .git/*", `pattern ".git/*": it matches no file`},
		{closed, "dog/1.png cat/o*/*", "[cat dog] [{cat/old/0.png 0} {dog/1.png 1}] <nil>"},
		{closed, "**/0* **/z.* */1*", "[cat dog] [{cat/1.png 0} {cat/old/0.png 0} {dog/1.png 1} {dog/x/y/z.txt 1}] <nil>"},
		{closed, "*.png", `class "cat" has no file (patterns ["*.png"])`},
		{closed, "cat/*", `class "dog" has no file (patterns ["cat/*"])`},
		{closed, "*/* cat/.hidden", `pattern "cat/.hidden": it matches no file`},
		{closedFS{tree(), "dog"}, "", "dog: " + fs.ErrPermission.Error()},
	} {
		runRow(t, c.want, func(t *testing.T) {
			samples, classes, err := Folder(c.fsys, strings.Fields(c.patterns)...)
			saysAll(t, errors.New(fmt.Sprint(classes, samples, err)), c.want)
		})
	}
}

// TestBadFiles checks that file systems and patterns that cannot be right are
// refused.
func TestBadFiles(t *testing.T) {
	files := func(pattern string) error { return errorOf(Files(tree(), "a.txt", pattern)) }
	folder := func(fsys fs.FS) error { _, _, err := Folder(fsys); return err }
	missing := errorOf(fs.ReadDir(os.DirFS("nowhere"), "."))
	refused(t, []refusal{
		{errorOf(Files(nil)), "Files … nil"},
		{errorOf(Files(fstest.MapFS{"a": {Mode: fs.ModeDir}})), "Files: fstest.MapFS: there is no file"},
		{files("cow/*.png"), `Files: … pattern "cow/*.png": it matches no file`},
		{files(""), `Files: … pattern "": it matches no file`},
		{because(t, path.ErrBadPattern, files("a/[")), "Files: "},
		{folder(nil), "Folder … nil"},
		{because(t, fs.ErrNotExist, errorOf(Files(os.DirFS("nowhere")))), "= dataloader: Files: nowhere: " + missing.Error()},
		{because(t, fs.ErrNotExist, folder(os.DirFS("nowhere"))), "Folder: nowhere: "},
		{folder(fstest.MapFS{"a.txt": {}}), "Folder: … no folder"},
		{folder(fstest.MapFS{"cat/1": {}, "dog": {Mode: fs.ModeDir}}), `Folder: fstest.MapFS: class "dog" has no file`},
	})
}

// TestFilesOnDisk checks that files are read when they are asked for, and which
// links are followed.
func TestFilesOnDisk(t *testing.T) {
	dir := t.TempDir()
	must(0, os.CopyFS(dir, fstest.MapFS{"cat/1": {Data: []byte("old")}, "cat/2": {}, "cat/3": {Data: []byte("3")}, ".old/4": {}}))
	data := must(Files(os.DirFS(dir), "cat/*"))
	must(0, errors.Join(os.WriteFile(dir+"/cat/1", []byte("new"), 0o600), os.Remove(dir+"/cat/2")))
	got := outcomes(newLoader(t, data, Options{Workers: 2}).Epoch(t.Context(), 0))
	equal(t, "file 1", got[0], fmt.Sprint([]File{{"cat/1", []byte("new")}}))
	equal(t, "file 2", errors.Is(errorOf(data.Get(t.Context(), 1)), fs.ErrNotExist), true)

	link := func(to, name string) error { return os.Symlink(to, filepath.Join(dir, name)) }
	if errors.Join(link(".old", "dog"), errorOf(os.Lstat(filepath.Join(dir, "dog")))) != nil {
		t.Skip("this system makes no symbolic links")
	}
	must(0, errors.Join(link("1", "cat/5"), link("../.old", "cat/old")))
	folder := func(patterns ...string) (string, error) {
		samples, _, err := Folder(os.DirFS(dir), patterns...)
		return fmt.Sprint(samples), err
	}
	const labels = "[{cat/1 0} {cat/3 0} {cat/5 0} {dog/4 1}]"
	for _, patterns := range [][]string{nil, {"*/*"}, {"**/[0-9]"}} {
		equal(t, "with links to folders", must(folder(patterns...)), labels)
	}
	found := values(t, must(Files(os.DirFS(dir), "dog/*", "**/5", "*/4")))
	equal(t, "through links", fmt.Sprint(found), fmt.Sprint([]File{{".old/4", nil}, {"cat/5", []byte("new")}, {"dog/4", nil}}))
	must(0, link("nowhere", "cow"))
	equal(t, "a broken link", errors.Is(errorOf(Files(os.DirFS(dir))), fs.ErrNotExist), true)
	equal(t, "a broken link as a class", errors.Is(errorOf(folder()), fs.ErrNotExist), true)
	equal(t, "a broken link that no pattern matches", must(folder("*/*")), labels)
}

// ## What every stream promises

// TestStreams: each stage, alone and deep in others, keeps every promise of a
// stream, in epoch 0, whose cursors are nearly zero, and in epoch 2. What it
// yields in epoch 2 tells which epochs it has read.
func TestStreams(t *testing.T) {
	spoiled := func([]int, []int) ([]int, error) { return []int{7}, errBad }
	several := func(_ context.Context, i int) ([]int, error) { return make([]int, i%3), nil }
	odd := func(i int) bool { return i%2 == 1 }
	empty, size := counting(0), Indices(sampler{n: 9, name: "größe", order: Sequential(9).Order})
	last, cycle, forever := MixOptions{Stop: StopAtLast}, MixOptions{Stop: CycleUntilLast}, MixOptions{Stop: CycleForever}
	weighted := MixOptions{Weights: []float64{1, 3, .5}, Seed: 3, Stop: CycleUntilLast}
	deep := func(workers int) ints {
		s := Map(Mix(last, counting(13, 4).Prefetch(2), counting(5), counting(9, 0, 8)).Shuffle(4, 1), workers, double)
		s = Mix(MixOptions{Weights: []float64{2, 1}, Seed: 5, Stop: CycleUntilLast}, s, counting(7))
		return Unbatch(Batch(s, 3, List[int]).Prefetch(2))
	}
	decide := func(e *SampleError) error {
		if e.Pos == 7 {
			panic("ouch")
		}
		return map[int]error{5: io.EOF, 9: e}[e.Pos] // nil drops the item; e itself stays
	}
	grows := &sampler{n: 3, name: "grows", order: Sequential(5).Order}
	grown := Indices(grows)
	grows.n = 5
	in2 := func(s ints) string { return fmt.Sprint(outcomes(s.Epoch(t.Context(), 2))) }
	for _, c := range []struct {
		name  string
		check func(t *testing.T, epoch int) []string
		want  string // in epoch 2, if it is to be compared
	}{
		{"FromSeq", of(counting(4, 0, 3)), "[error item 0 is bad 201 202 error item 3 is bad]"},
		{"Filter", of(counting(9, 3).Filter(odd)), "[201 error item 3 is bad 205 207]"},
		{"OnError", of(Map(counting(9, 1, 2, 4, 6, 8), 3, quick).OnError(decide)),
			"[200 203 error Stream.OnError: EOF 205 error Stream.OnError: panic: ouch 207 error item 8 is bad]"},
		{"Take", of(counting(9, 1).Take(3)), "[200 error item 1 is bad 202]"},
		{"Repeat", of(counting(2, 1).Repeat(3)), "[600 error item 1 is bad 700 error item 1 is bad 800 error item 1 is bad]"},
		{"Repeat forever", of(counting(2).Cycle().Take(5)), "[200 201 300 301 400]"},
		{"Chain", of(Chain(counting(2), empty, counting(3, 0))), "[200 201 error item 0 is bad 201 202]"},
		{"Zip", of(Zip(counting(4, 1), counting(3, 2))), "[{200 200} error item 1 is bad error item 2 is bad]"},
		{"Zip, second longer", of(Zip(counting(2), letters("abc"))), "[{200 a} {201 b}]"},
		{"Indices", of(Indices(OrderFunc(3, func(e int) []int { return []int{e, 0, 1} }))), "[2 0 1]"},
		{"Indices of a sampler that has grown", of(grown), "[0 1 2]"},
		{"Shuffle, greatest size", of(counting(9).Shuffle(math.MaxInt/4, 1)), "[201 208 205 204 203 207 200 202 206]"},
		{"Shuffle, endless", of(counting(4).Cycle().Shuffle(3, 1).Take(9)), "[201 200 203 202 300 301 303 400 302]"},
		{"Shuffle, in letters to be escaped", of(Zip(size, counting(9)).Shuffle(5, 6)), ""},
		{"Mix first", of(Mix(MixOptions{Stop: StopAtFirst}, letters("a"), letters("bB"), letters("cCc"))), "[a b c]"},
		{"Mix last", of(Mix(last, letters("a"), letters("bB"), letters("cCx"))), "[a b c B C x]"},
		{"Mix last, one empty", of(Mix(last, empty, counting(2))), "[200 201]"},
		{"Mix cycle", of(Mix(cycle, counting(1), counting(2), counting(3, 1))),
			"[200 200 200 300 201 error item 1 is bad 400 300 202 500 301]"},
		{"Mix forever", of(Mix(forever, counting(1), counting(2)).Take(7)), "[200 200 300 201 400 300 500]"},
		{"Mix by weight, cycle", of(Mix(weighted, counting(2), counting(6), counting(3))),
			"[200 200 201 200 202 203 204 205 201 300 301 201 302 300 303 304 301 305 400 401 402 400 403 404 202 405 401 " +
				"500 501 500 502 503]"},
		{"Shard", of(Map(counting(8, 4).Shard(Rank{1, 3}, PadTail), 0, quick)), "[201 error item 4 is bad 207]"},
		{"Batch", of(Batch(counting(7, 4, 5), 2, List[int])), "[[200 201] [202 203] error item 4 is bad [206]]"},
		{"Batch, spoiled", of(Batch(counting(3, 2), 2, spoiled)), "[error Batch: bad sample error item 2 is bad]"},
		{"Unbatch", of(Unbatch(Batch(counting(5, 2), 2, List[int]))), "[200 201 error item 2 is bad 204]"},
		{"Unbatch, empty batches", of(Unbatch(Map(counting(4), 0, several))), "[0 0 0 0 0]"},
		{"packTexts", of(packTexts(Batch(counting(4), 3, List[int]), 2)),
			"[{[200 201] [2]} {[202 203] [2]}]"},
		{"nothing", of(Chain(Chain[int](), empty.Filter(odd), counting(3).Filter(func(int) bool { return false }), empty.Take(2),
			empty.Repeat(3), empty.Shuffle(5, 1), empty.Shard(Rank{1, 2}, PadTail), Unbatch(Batch(empty, 2, List[int])),
			Map(empty, 3, quick), empty.Prefetch(3))), "[]"},
		{"Shuffle of a Mix of Shuffles", of(Mix(last, slices.Repeat([]ints{counting(4).Shuffle(2, 1)}, 7)...).Shuffle(2, 3)), ""},
		{"deep", of(deep(2)), in2(deep(0))},
	} {
		runRow(t, c.name, func(t *testing.T) {
			if !testing.Short() {
				c.check(t, 0)
			}
			if got := fmt.Sprint(c.check(t, 2)); c.want != "" {
				equal(t, "epoch 2", got, c.want)
			}
		})
	}
}

// compose builds a stream out of bytes: each pair is a stage and its argument.
func compose(program []byte) ints {
	next := func() (b int) {
		if len(program) > 0 {
			b, program = int(program[0]), program[1:]
		}
		return b
	}
	source := func() ints {
		n := next()
		opts := Options{BatchSize: 1 + n%3, Shuffle: true, Workers: n % 3, Tail: UnevenTail}
		return []ints{
			counting(n / 4 % 12),
			counting(n/4%12, n/8%7, n/16%5),
			Indices(Random(n/4%12, uint64(n))),
			Unbatch(StreamOf(must(New(numbers(n/4%12), List[int], opts)))),
		}[n%4]
	}
	s := source()
	for k := 0; k < 6 && len(program) > 0; k++ {
		s = stages[next()%len(stages)].of(s, next(), source)
	}
	return s.Take(60)
}

// FuzzStreams: compositions at random keep every promise too.
func FuzzStreams(f *testing.F) {
	random := rand.NewChaCha8([32]byte{3})
	for k := range unlessShort(100, 25) {
		program := make([]byte, 3+k%14)
		random.Read(program)
		f.Add(program)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		checkStream(t, compose(program[:min(len(program), 20)]), 1)
	})
}

// TestEnds: the end of an epoch counts once its last item has been handed over,
// even if the context ends in the body of that item, behind every stage and for
// any number of workers. No stage takes the end of its context for the end of
// its source.
func TestEnds(t *testing.T) {
	stopping := &feed{n: 1, before: func(ctx context.Context, i int) {
		if i == 1 {
			<-ctx.Done()
		}
	}}
	for _, n := range []int{2, 5, 8, 14} { // 0 to 3 workers; Filter and Shard keep the last item of their source
		for _, source := range []ints{Indices(Sequential(6)), Unbatch(StreamOf(newLoader(t, numbers(6), Options{Workers: n / 4})))} {
			eachStage(t, source, n, func(t *testing.T, s ints) {
				want := readAll(t, s)
				for k := range len(want) + 1 {
					checkStop(t, s, 0, k, want, true)
				}
			})
		}
		eachStage(t, stopping.stream(), n, func(t *testing.T, s ints) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errBad)
			defer cancel()
			var at Cursor
			got := outcomes(s.Run(ctx, &at))
			equal(t, "the end", fmt.Sprint(at, got[len(got)-1]), fmt.Sprint(Cursor{0, len(got) - 1, at.State}, "error ", errBad))
		})
	}
}

// TestChangedSources: a source may change between run and resume. If some items
// fail in one of them only, nothing else changes. If some items have come or
// gone, a resume loses no other item and repeats none, or is refused.
func TestChangedSources(t *testing.T) {
	source, sick := &feed{n: 31}, []int{1, 5, 9, 13, 17, 21, 25, 29} // which no stage leaves out
	for _, n := range []int{4, 8} {
		eachStage(t, source.stream(), n, func(t *testing.T, s ints) {
			for _, change := range [][2][]int{{nil, sick}, {sick, nil}} {
				source.bad = change[0]
				all := cursors(t, s)
				source.bad = change[1]
				want := readAll(t, s)
				equal(t, "whether items fail", strings.Contains(fmt.Sprint(want), "is bad"), source.bad != nil)
				for k, at := range all {
					got := resume(t, s, throughJSON(t, at))
					equal(t, fmt.Sprintf("after %d, with %v instead of %v", k, change[1], change[0]), got, want[k:])
				}
			}
		})
	}
	source.n, source.bad = 12, nil
	s := Unbatch(Batch(source.stream(), 4, List[int]))
	all := cursors(t, s)
	source.bad = []int{5} // so that the rest of its batch is one failed item
	want := []string{"0", "1", "2", "3", "error item 5 is bad", "8", "9", "10", "11"}
	for k, at := range all {
		equal(t, fmt.Sprint("Unbatch, after ", k), resume(t, s, throughJSON(t, at)), want[max(min(k, 4), k-3):])
	}

	var gone []int
	there := Indices(Sequential(23)).Filter(func(i int) bool { return !slices.Contains(gone, i) })
	for name, s := range map[string]ints{"Unbatch": Unbatch(Batch(there, 4, List[int])), "Shuffle": there.Shuffle(5, 1)} {
		runRow(t, name, func(t *testing.T) {
			refusals, late := 0, upTo(23)[13:]
			for _, change := range [][2][]int{{nil, late}, {late, nil}, {nil, upTo(23)}, {nil, {2}}, {nil, {10}}, {nil, {21}}} {
				gone = change[0]
				before, all := readAll(t, s), cursors(t, s)
				gone = change[1]
				now := sorted(readAll(t, s))
				for k, at := range all {
					got := outcomes(s.Run(t.Context(), &at))
					if k > 0 && len(got) == 1 && strings.Contains(got[0], "the source has changed") {
						equal(t, "the cursor", at, all[k])
						refusals++
						continue
					}
					had := slices.DeleteFunc(slices.Clone(before[:k]), func(x string) bool { return !slices.Contains(now, x) })
					got = sorted(append(had, got...))
					equal(t, fmt.Sprintf("%v are gone, then %v, after %d", change[0], change[1], k), got, now)
				}
			}
			equal(t, fmt.Sprint("it may refuse what it has to read again, not ", refusals), refusals > 9 && refusals < 100, true)
		})
	}
}

// TestJoinedSources: a stage that reads items again may begin in a source that
// has ended by the cursor. With another source in its place the resume has
// exactly what is left of one of the two, or is refused; with its own it is
// never refused.
func TestJoinedSources(t *testing.T) {
	ordered := func(order Sampler) lists {
		return Map(Indices(order), 0, func(_ context.Context, i int) ([]int, error) { return []int{i}, nil })
	}
	sequence := func(n int) lists {
		return Map(counting(n), 0, func(_ context.Context, i int) ([]int, error) { return []int{i % 100}, nil })
	}
	batched := func(opts Options) lists { return loaded(4, opts) }
	firsts := map[string]lists{
		"Random 1":          ordered(Random(4, 1)),
		"Random 3":          ordered(Random(4, 3)),
		"Sequential":        ordered(Sequential(4)),
		"five":              ordered(Random(5, 1)),
		"a sequence":        sequence(4),
		"a longer sequence": sequence(6),
		"batches of 2":      batched(Options{BatchSize: 2}),
		"batches of 3":      batched(Options{BatchSize: 3}),
		"version 1":         batched(Options{DataVersion: "1"}),
		"version 2":         batched(Options{DataVersion: "2", Shuffle: true}),
		"rank 0":            ordered(Sequential(8)).Shard(Rank{0, 2}, DropTail),
		"rank 1":            ordered(Sequential(8)).Shard(Rank{1, 2}, DropTail),
		"only rank":         ordered(Sequential(4)).Shard(Rank{0, 1}, DropTail),
		"Shuffle 1":         ordered(Sequential(4)).Shuffle(3, 1),
		"Shuffle 2":         ordered(Sequential(4)).Shuffle(3, 2),
		"Chain":             Chain(ordered(Random(2, 1)), listed(2, 2)),
		"Chain reversed":    Chain(listed(2, 2), ordered(Random(2, 1))),
		"Repeat":            ordered(Random(4, 1)).Repeat(2).Take(4),
		"Unbatch":           Map(Unbatch(Batch(ordered(Random(4, 1)), 3, List[[]int])), 0, quick),
		"mine":              counts(ordered(Random(4, 1))),
		"another of mine":   counts(ordered(Random(4, 3))),
		"empty":             ordered(Sequential(0)),
	}
	others := func() lists { return listed(50, 6) }
	joins := map[string]func(s lists) lists{
		"Chain":         func(s lists) lists { return Chain(s, others()) },
		"Chain, second": func(s lists) lists { return Chain(listed(40, 2), s, others()) },
		"Chain, nested": func(s lists) lists { return Chain(Chain(s, listed(40, 2)), others()) },
		"Repeat":        func(s lists) lists { return s.Repeat(2) },
		"Repeat, Chain": func(s lists) lists { return Chain(s.Repeat(2), others()) },
		"endless":       func(s lists) lists { return Chain(s, listed(40, 2)).Cycle().Take(14) },
		"Mix":           func(s lists) lists { return Mix(MixOptions{}, s, others()) },
		"Mix, cycle": func(s lists) lists {
			return Mix(MixOptions{Stop: CycleUntilLast}, Chain(s, listed(40, 1)), listed(50, 9))
		},
		"Mix, cycle, second": func(s lists) lists {
			return Mix(MixOptions{Stop: CycleUntilLast}, Chain(listed(40, 3), s), listed(50, 15))
		},
		"endless, second": func(s lists) lists { return Chain(listed(40, 3), s).Cycle().Take(18) },
		"Mix, forever": func(s lists) lists {
			return Mix(MixOptions{Stop: CycleForever}, Chain(s, listed(40, 1)), others()).Take(16)
		},
		"Mix, weights": func(s lists) lists {
			return Mix(MixOptions{Weights: []float64{3, 1}, Stop: CycleForever}, Chain(s, listed(40, 1)), others()).Take(16)
		},
		"mine": func(s lists) lists { return counts(Chain(s, others())) },
	}
	pairs := func(s lists, size int) lists { return Map(Unbatch(Batch(s, size, List[[]int])), 0, quick) }
	again := map[string]func(s lists) lists{
		"Shuffle":          func(s lists) lists { return s.Shuffle(4, 1) },
		"Shuffle 2":        func(s lists) lists { return s.Shuffle(2, 7) },
		"Shuffle, Shuffle": func(s lists) lists { return s.Shuffle(2, 1).Shuffle(3, 2) },
		"Unbatch":          func(s lists) lists { return pairs(s, 6) },
		"Unbatch, Shuffle": func(s lists) lists { return pairs(s, 3).Shuffle(2, 1) },
		"Take, Shuffle":    func(s lists) lists { return s.Take(9).Shuffle(3, 1) },
		"Shard, Shuffle":   func(s lists) lists { return s.Shard(Rank{0, 1}, UnevenTail).Shuffle(3, 1) },
		"Zip, Shuffle": func(s lists) lists {
			return Map(Zip(s, listed(70, 99)), 0, func(_ context.Context, p Pair[[]int, []int]) ([]int, error) { return p.First, nil }).Shuffle(3, 1)
		},
	}
	exact, refusals, tried := 0, 0, 0
	alone := map[string][]string{} // the items of each first source, sorted
	for first, s := range firsts {
		for _, item := range collect(t, s.Items(t.Context(), Cursor{})) {
			alone[first] = append(alone[first], itemInWords(item, nil))
		}
		slices.Sort(alone[first])
	}
	for join, joined := range joins {
		for name, of := range again {
			runRow(t, join+", "+name, func(t *testing.T) {
				runs := map[string]rankRun{}
				for first, s := range firsts {
					if first == "empty" && join != "Chain" {
						continue // Repeat has no items, and Mix cannot cycle
					}
					run := rankRun{stream: of(joined(s))}
					for item, err := range run.stream.Items(t.Context(), Cursor{}) {
						run.items, run.next = append(run.items, itemInWords(item, err)), append(run.next, throughJSON(t, item.Next))
					}
					runs[first] = run
				}
				for first, maker := range runs {
					for other, run := range runs {
						repeats := !strings.HasPrefix(join, "Chain") && join != "Mix" && join != "mine"
						if repeats && !slices.Equal(alone[first], alone[other]) {
							continue // the epochs before the cursor had other items
						}
						for k, at := range maker.next {
							every := map[bool]int{true: 5, false: 60}[first == other] * unlessShort(1, 10)
							if tried++; tried%every > 0 && !*everyPipeline {
								continue
							}
							rest, refused := resumeInWords(t, run.stream, at)
							what := fmt.Sprintf("%s after %d, then %s, at %v: %q", first, k+1, other, at, rest)
							if refused {
								refusals++
								failIf(t, first == other, "its own is refused: %s", what)
								continue
							}
							exact++
							got := numbersIn(slices.Concat(maker.first(k+1), rest))
							sound := slices.Equal(got, numbersIn(run.items)) || first != other && slices.Equal(got, numbersIn(maker.items))
							failIf(t, !sound, "%s\n got %q\nwant %q\n  or %q", what, got, numbersIn(run.items), numbersIn(maker.items))
						}
					}
				}
			})
		}
	}
	t.Logf("%d resumes were exact, %d refused", exact, refusals)
}

// TestMomentaryFailures: a checkpoint is clean, and during the resume an item,
// or the rest of a shard, fails once. The cursor is never refused, and the next
// try has the exact rest. So has the first, or it has an error, unless OnError
// drops what has failed.
func TestMomentaryFailures(t *testing.T) {
	const n = 7
	var sick atomic.Int64 // which item fails once; -1: none
	fails := func(i int) error { return map[bool]error{true: errBad}[sick.CompareAndSwap(int64(i), -1)] }
	load := func(_ context.Context, i int) (int, error) { return i, fails(i) }
	sequence := func(failed func(yield func(int, error) bool, err error) (more bool)) ints {
		return FromSeq(func(context.Context, int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := range n {
					if err := fails(i); err != nil && !failed(yield, err) || err == nil && !yield(i, nil) {
						return
					}
				}
			}
		})
	}
	goesOn := sequence(func(yield func(int, error) bool, err error) bool { return yield(0, err) })
	ends := sequence(func(yield func(int, error) bool, err error) bool { yield(0, err); return false })
	dies := sequence(func(_ func(int, error) bool, err error) bool { panic(err) })
	names, shards := tenShards()
	open := func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		data := shards[name][offset:]
		if i, _ := strconv.Atoi(name[:1]); fails(i) != nil {
			return io.NopCloser(breaksAfter(data[:min(700, len(data))], func() error { return errBad })), nil
		}
		return io.NopCloser(bytes.NewReader(data)), nil
	}
	records := Map(tarFrom(open, names...), 0, func(_ context.Context, r Record) (int, error) {
		return int(r.Key[0])<<8 + int(r.Key[1]), nil
	})
	mapped, loader := Map(Indices(Random(n, 1)), 0, load), newLoader(t, Func(n, load), Options{BatchSize: 3})
	pairs := func(s ints) Stream[[]int] { return Batch(s, 2, List[int]) }
	for name, s := range map[string]ints{
		"FromSeq": goesOn, "FromSeq, ends": Map(ends, 2, quick), "FromSeq, dies": dies,
		"Shuffle, Map": mapped.Shuffle(2, 1), "Shuffle, dies": dies.Shuffle(2, 1),
		"Shuffle, Tar": records.Shuffle(3, 1), "Tar": records, "Unbatch": Unbatch(pairs(goesOn)), "Unbatch, dies": Unbatch(pairs(dies)),
		"Unbatch, Tar":    Unbatch(Batch(records, 3, List[int])),
		"Unbatch, loader": Unbatch(StreamOf(loader)), "Mix": Mix(MixOptions{}, mapped.Shuffle(2, 1), goesOn, dies.Shuffle(2, 2)),
		"Zip": Map(Zip(dies.Shuffle(2, 1), mapped), 0, add), "Repeat": goesOn.Repeat(2).Shuffle(2, 1), "Chain": Chain(mapped, dies),
		"two Shuffles": Unbatch(pairs(mapped.Shuffle(2, 1))).Shuffle(2, 2), "Shard": mapped.Shuffle(2, 1).Shard(Rank{1, 2}, PadTail),
	} {
		runRow(t, name, func(t *testing.T) {
			sick.Store(-1)
			all, want := cursors(t, s), readAll(t, s)
			for _, drops := range []bool{false, true} {
				if drops {
					s = s.OnError(dropBad)
				}
				for k, at := range all[1 : len(all)-1] {
					for i := range n {
						sick.Store(int64(i))
						got := fmt.Sprint(resume(t, s, throughJSON(t, at)))
						sick.Store(-1)
						again := resume(t, s, throughJSON(t, at))
						what := fmt.Sprintf("after %d, while %d fails: ", k+1, i)
						equal(t, what+"refused", strings.Contains(got, "refused"), false)
						equal(t, what+"the next try", again, want[k+1:])
						if !drops && !strings.Contains(got, "error") {
							equal(t, what+"without an error", got, fmt.Sprint(again))
						}
					}
				}
			}
		})
	}
	err := ending(counting(3, 1).Run(t.Context(), &Cursor{Pos: 4, State: stageState{By: "FromSeq"}}))
	equal(t, "a sequence with too few items, one of which failed", errors.Is(err, ErrCursor), false)
}

// TestPlaces: the place in an error is the loop's, whatever stages are between:
// the epoch and the position of its cursor, and the batch if the cursor is a
// loader's own. The index is that of the loader at the source. The place of a
// loop that a user's function runs does not count, and its prefix is not
// repeated.
func TestPlaces(t *testing.T) {
	loader := StreamOf(newLoader(t, failing(8, 3), Options{BatchSize: 2}))
	inner := newLoader(t, failing(80, 77), Options{})
	nested := func(ctx context.Context, i int) (int, error) {
		_, err := inner.Batch(ctx, 40, 76+i)
		return i, err
	}
	failedSeq := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] { return one(nested(ctx, 1)) })
	function := Map(Indices(Sequential(4)), 0, nested)
	for _, c := range []refusal{
		{failure(t, loader), "batch 1, sample 3: bad sample"},
		{failure(t, Map(loader, 2, quick).Filter(func([]int) bool { return true }).Prefetch(2)), "batch 1, sample 3: bad sample"},
		{failure(t, loader.Repeat(2)), "the item before pos 2, sample 3: bad sample"},
		{failure(t, packTexts(Batch(counting(1000), 1, List[int]), 1001)),
			"the item before pos 1: Batch: 1,000 texts do not fill a row: take more texts at once"},
		{failure(t, Zip(loader, loader.Take(1).Repeat(9)).Take(5)), "the item before pos 2, sample 3: bad sample"},
		{failure(t, counting(8, 3).OnError(func(*SampleError) error { return errBad })),
			"the item before pos 4: Stream.OnError: bad sample"},
		{failure(t, function), "the item before pos 2: Map: epoch 40, batch 77, sample 77: bad sample"},
		{failure(t, failedSeq), "the item before pos 1: FromSeq: epoch 40, batch 77, sample 77: bad sample"},
	} {
		runRow(t, c.want, func(t *testing.T) {
			equal(t, "the error", fmt.Sprint(c.err), "dataloader: epoch 5, "+c.want)
			equal(t, "is a SampleError", isSampleError(c.err), true)
			equal(t, "has its cause", errors.Is(c.err, errBad), strings.Contains(c.want, "bad sample"))
		})
	}
	fails := func(err error) ints { return counting(8, 3).OnError(func(*SampleError) error { return err }) }
	because(t, errBad, because(t, fs.ErrExist, failure(t, Zip(fails(errBad), fails(fs.ErrExist))))) // a pair has both causes
}

// TestPackTexts checks that an epoch without a row is an error, and that texts
// at the end of an epoch which do not fill a row are left out.
func TestPackTexts(t *testing.T) {
	of := func(texts, length int) Stream[Tensor[int]] {
		return packTexts(Batch(counting(texts), 1, List[int]), length)
	}
	equal(t, "7 tokens", fmt.Sprint(failure(t, of(7, 8))),
		"all texts of epoch 5 do not fill a row")
	equal(t, "no texts", failure(t, of(0, 8)) != nil, true)
	equal(t, "8 tokens", len(collect(t, of(8, 8).Epoch(t.Context(), 0))), 1)
	at := Cursor{Epoch: 5}
	for range of(1007, 8).Run(t.Context(), &at) {
		if at.Pos == 125 { // the last row
			break
		}
	}
	equal(t, "after the last row", len(collect(t, of(1007, 8).Run(t.Context(), &at))), 0)
}

// TestRefusedCursors: a cursor is refused with an ErrCursor if another loader
// or stream has made it, or if none can have made it. The error says what does
// not fit, in at most 340 bytes, fresh and saved, alone, behind stages that
// pass cursors on, and in a Mix. A cursor made out of order fits only its own
// rank and batch size, also if nothing was ahead.
func TestRefusedCursors(t *testing.T) {
	s, odd := counting(9), func(i int) bool { return i%2 == 1 }
	saved := func(text string) Cursor { return fromJSON(t, text) }
	after := func(n int, s ints) Cursor { return cursors(t, s)[n] }
	loader := func(opts Options) ints { return Map(StreamOf(newLoader(t, numbers(20), opts)), 0, head) }
	base, own := Options{Shuffle: true, Seed: 1, BatchSize: 2}, Options{BatchSize: 2, Unordered: true, Rank: Rank{0, 2}}
	at, ownAt := after(1, loader(base)), newLoader(t, numbers(20), own).At(0, 1)
	named := func(version string) Options {
		return Options{Shuffle: true, Seed: 1, BatchSize: 2, DataVersion: version}
	}
	inMix := func(source Cursor, n int) Cursor { // after n draws
		return Cursor{source.Epoch, 1, stageState{
			By: "Mix(1 in turn, stop at last)", N: n, Sources: []Cursor{source}, Ended: []bool{false}}}
	}
	for _, versions := range [][2]string{{"", "v1"}, {"v1", ""}, {"v1", "v1"}} {
		made := after(1, loader(named(versions[0])))
		equal(t, fmt.Sprint(versions), resume(t, loader(named(versions[1])), made), resume(t, loader(base), at))
	}
	batched := func(dropLast bool) Options { return Options{BatchSampler: Batches(Random(20, 1), 2, dropLast)} }
	with := func(fields string) Cursor {
		return saved(`{"epoch":0,"pos":2,"state":{"by":"Random(20, seed 1)","seed":1,` + fields + `}}`)
	}
	const ofRank, size = `"rank":{"Index":0,"Count":1}`, `"size":2`
	done := func(spans string) Cursor { return with(`"done":` + spans + "," + ofRank + "," + size) } // steps done ahead
	const isDamaged = "epoch 0, pos 2}: its state is damaged: steps that are done need a rank and a size"
	weighted := func(a, b float64) ints { return Mix(MixOptions{Weights: []float64{a, b}, Seed: 3}, s, s) }
	mixed := func(seed uint64) ints { return Mix(MixOptions{}, Indices(Random(9, seed)), s).Shuffle(4, 1) }
	mine := func(field string, value, pos int) ints { // a stage of the user's, whose State has one field more
		return NewStage(s, false, func(ctx context.Context, s ints, from Cursor) iter.Seq2[Item[int], error] {
			return func(yield func(Item[int], error) bool) {
				for item, err := range s.Items(ctx, from) {
					source := Cursor{0, pos, item.Next.State}
					item.Next.State = map[string]any{"by": "mine", "source": source, field: value}
					if !yield(item, err) {
						return
					}
				}
			}
		})
	}
	batches := func(s ints) ints { return Unbatch(Batch(s, 4, List[int])) }
	third, ends := after(3, batches(s)), after(13, counting(20).Shuffle(40, 1)) // the source of ends has ended
	sizes := func(size int) Options { return Options{BatchSize: size} }         // 20 samples in three batches
	shuffled := func(size int) ints {                                           // 36 samples
		return Map(StreamOf(newLoader(t, numbers(36), sizes(size))), 0, head).Shuffle(2, 1)
	}
	dealt := func(rank, ranks int) ints { return counting(4).Shard(Rank{rank, ranks}, UnevenTail) }
	same := batches(mine("version", 1, 7))
	equal(t, "mine, of the same version", resume(t, same, throughJSON(t, after(1, same))), resume(t, s, after(1, s)))
	names, shards := tenShards()
	shards["ab"], shards["c"] = tarEntries("1.txt=", "2.txt="), tarEntries("3.txt=")
	tars := func(opts TarOptions, names ...string) ints {
		opts.Open = inMemory(shards)
		return Map(must(Tar(names, opts)), 0, func(context.Context, Record) (int, error) { return 0, nil })
	}
	tar, rank, last := after(3, tars(TarOptions{}, names...)), TarOptions{Rank: Rank{1, 4}}, tarState{}
	lastAt := after(6, tars(rank, names...)) // of three shards
	must(0, lastAt.Load(&last))
	damaged := func(number int, offset int64) Cursor {
		return Cursor{lastAt.Epoch, lastAt.Pos, tarState{By: last.By, ShardNumber: number, Offset: offset}}
	}
	const otherTar = "it was made by Tar( … this is Tar( … use the same data and options"
	for _, c := range []struct {
		s    ints
		from Cursor
		says string // between dots
	}{
		{loader(named("v2")), after(1, loader(named("v1"))), `made with Options.DataVersion "v1", this loader has "v2"`},
		{loader(Options{Shuffle: true, Seed: 2, BatchSize: 2}), at, "epoch 0, pos 2 … Random(20, seed 1) … Random(20, seed 2)"},
		{loader(Options{Sampler: Random(19, 1), Seed: 1, BatchSize: 2}), at,
			"Random(20, seed 1) … this is Random(19, seed 1); use the same data and options, or start at Cursor{Epoch: 0}"},
		{loader(Options{BatchSampler: make(fixedBatches, 20)}), at, "Random(20, seed 1) … dataloader.fixedBatches(20)"}, // no String
		{loader(batched(true)), after(1, loader(batched(false))), "Batches … Batches"},
		{loader(Options{BatchSize: 2, Sampler: Random(20, 1)}), at, "Options.Seed 1 … Options.Seed 0"},
		{loader(base), Cursor{Pos: 21, State: at.State}, "pos 21 … at most 20"},
		{loader(base), Cursor{Pos: -1, State: at.State}, "pos -1 … must not be negative"},
		{loader(Options{BatchSize: 2, Rank: Rank{1, 2}}), ownAt, "made out of order by rank {0 2} with batches of 2"},
		{loader(Options{BatchSize: 4, Rank: Rank{0, 2}}), ownAt, "made out of order by rank {0 2} with batches of 2"},
		{loader(base), done("[[5,10]]"), "damaged … steps of 9"},
		{loader(base), done("[[0,2]]"), "damaged … [0 2]"}, // begins at step 0
		{loader(base), done("[[1,2],[2,3]]"), "damaged … [1 2] [2 3]"},
		{loader(base), done("[[5,4]]"), "damaged … [5 4]"},
		{loader(base), with(`"done":[[1,2]]`), isDamaged},
		{loader(base), with(`"done":[[1,2]],` + size), isDamaged},

		{s.Take(4), after(1, s.Take(3)), "made by Take(3), this is Take(4)"},
		{s.Shuffle(3, 2), after(1, s.Shuffle(3, 1)), "Shuffle(3, seed 1) … Shuffle(3, seed 2)"},
		{Chain(s, s, s), after(1, Chain(s, s)), "Chain(2) … Chain(3)"},
		{weighted(2, 1), after(1, weighted(1, 2)), "seed 3 … [1 2] … seed 3 … [2 1]"},
		{Indices(Random(8, 1)), after(1, Indices(Random(9, 1))), "Random(9, seed 1) … Random(8, seed 1)"},
		{Indices(Sequential(20)), after(1, loader(Options{})), "made by Sequential(20), this is Indices(Sequential(20))"},
		{loader(Options{}), after(1, Indices(Sequential(20))), "made by Indices(Sequential(20)), this is Sequential(20)"},
		{counting(3), after(1, s.Filter(func(i int) bool { return i > 5 })), "pos 7 … only 3 items"},
		{Unbatch(Batch(s, 2, List[int])), third, "the source has changed … it has 2 … had 4"},
		{batches(counting(0)), third,
			"the source has changed … it has 0 items up to pos 0 of FromSeq now, and had 4 up to pos 4"},
		{batches(s.Filter(func(i int) bool { return i > 0 })), third,
			"the source has changed … it has 4 items up to pos 5 … had 4 up to pos 4"},
		{counting(0).Shuffle(40, 1), ends, "the source has changed … it has"},
		{counting(22).Shuffle(40, 1), ends, "the source has changed … it has"},
		{counting(8).Shuffle(2, 0), after(9, counting(10).Shuffle(2, 0)),
			"it has 4 items up to pos 8 … had 6 up to pos 10"},
		{counting(20).Filter(odd).Shuffle(9, 1), after(3, counting(20, 0, 4, 8, 12, 16).Filter(odd).Shuffle(9, 1)), "has changed"},
		{mine("version", 2, 7).Shuffle(4, 1), after(1, mine("version", 1, 7).Shuffle(4, 1)),
			"has changed … of mine … of mine"},
		{batches(mine("again", 1, 8)), after(1, batches(mine("again", 1, 7))), "has changed … of mine … of mine"},
		{loader(named("v1")).Shuffle(2, 1), after(3, loader(named("")).Shuffle(2, 1)),
			"has changed, or only its Options.DataVersion " +
				"(leave a new one unset until the next epoch): it has"},
		{loader(sizes(8)).Shuffle(2, 1), after(3, loader(sizes(7)).Shuffle(2, 1)), "batches of 7, this is … batches of 8"},
		{shuffled(4), after(11, shuffled(3)), "batches of 3, this is … batches of 4"}, // both sizes divide 36
		{dealt(0, 3).Shuffle(2, 1), after(1, dealt(0, 1).Shuffle(2, 1)), "ranks 1, batches of 1, this is Shuffle( … ranks 3, batches of 1"},
		{mixed(2), after(1, mixed(1)), "the source has changed … of Indices(Random(9, seed 2)) … of Indices(Random(9, seed 1))"},

		{s, Cursor{Epoch: math.MaxInt}, "epoch and pos must not be negative, and epoch must be less than"},
		{s.Repeat(7), Cursor{Epoch: math.MaxInt / 3}, "the epoch is too far for Repeat(7)"},
		{s.Take(3), Cursor{Pos: 1}, "it has no State … a cursor of Run"},
		{s.Take(3), Cursor{Pos: 1, State: 7}, "does not fit"},
		{s.Take(3), saved(`{"epoch":0,"pos":1,"state":{}}`), "it was made by another stream, this is Take(3)"},
		{s.Take(3), saved(`{"epoch":0,"pos":4,"state":{"by":"Take(3)"}}`), "pos must be at most 3"},
		{Indices(Sequential(9)), saved(`{"epoch":0,"pos":10,"state":{"by":"Indices(Sequential(9))"}}`), "pos must be at most 9"},
		{Chain(s, s), saved(`{"epoch":0,"pos":1,"state":{"by":"Chain(2)","n":2}}`), "damaged: 2 is not one of 2 parts"},
		{batches(s), saved(`{"epoch":0,"pos":1,"state":{"by":"Unbatch","n":4}}`), "the source has changed"},
		{batches(s), saved(`{"epoch":0,"pos":3,"state":{"by":"Unbatch","n":99,"again":4}}`), "damaged"},
		{s.Shard(Rank{1, 3}, UnevenTail), saved(`{"epoch":0,"pos":2,"state":{"by":"Shard by steps","n":1048576}}`), "damaged"},
		{s.Shard(Rank{0, 3}, PadTail), saved(`{"epoch":0,"pos":1,"state":{"by":"Shard","n":2}}`),
			"made by Shard, this is Shard by steps"},
		{s.Shuffle(4, 1), saved(`{"epoch":0,"pos":1,"state":{"by":"Shuffle(4, seed 1), version 2","n":3}}`), "damaged"},
		{s.Shuffle(2, 1), saved(`{"epoch":0,"pos":1,"state":{"by":"Shuffle(2, seed 1), version 2"}}`), "damaged"},
		{s.Shuffle(math.MaxInt/4, 1), Cursor{Pos: 5*ceil(math.MaxInt/4*3, 8) + 1, State: stageState{
			By: fmt.Sprintf("Shuffle(%d, seed 1), version 2", math.MaxInt/4), N: 1}}, "damaged"},
		{s.Shuffle(2, 1), Cursor{Pos: math.MaxInt, State: stageState{By: "Shuffle(2, seed 1), version 2", N: 1}}, "damaged"},
		{Mix(MixOptions{}, s), inMix(Cursor{}, math.MaxInt), "damaged"},
		{s.Shuffle(4, 1), saved(`{"epoch":0,"pos":2,"state":{"by":"Shuffle(4, seed 1), version 2","n":1}}`), "damaged"},
		{s.Shuffle(4, 1), saved(`{"epoch":0,"pos":1,"state":{"by":"Shuffle(4, seed 1), version 2","n":1}}`), "the source has changed"},

		{tars(TarOptions{}, names[:9]...), tar, otherTar},
		{tars(TarOptions{}, append(names[1:10:10], names[0])...), tar, otherTar},
		{tars(TarOptions{Shuffle: true}, names...), tar, otherTar},
		{tars(TarOptions{}, "a", "bc"), after(1, tars(TarOptions{}, "ab", "c")), otherTar},
		{tars(TarOptions{Rank: Rank{2, 4}}, names...), lastAt,
			"rank 1 of 4), this is Tar( … rank 2 of 4): each rank needs the cursor that it saved itself, of as many ranks; Example"},
		{tars(rank, names...), damaged(4, 0), "damaged … 3 shards"},
		{tars(rank, names...), damaged(-1, 0), "damaged … 3 shards"},
		{tars(rank, names...), damaged(2, -1), "damaged … 3 shards"},
	} {
		runRow(t, c.says, func(t *testing.T) {
			for _, from := range []Cursor{c.from, throughJSON(t, c.from)} {
				for k, s := range []ints{c.s, Map(Batch(c.s, 2, List[int]).Prefetch(2), 1, head), Mix(MixOptions{}, c.s)} {
					at := []Cursor{from, from, inMix(from, 1)}[k]
					before, err := at, ending(s.Run(t.Context(), &at))
					refusal{err, c.says}.check(t)
					equal(t, "whether it is an ErrCursor", errors.Is(err, ErrCursor), true)
					equal(t, "whether it is a SampleError", isSampleError(err), false)
					equal(t, "whether it is long", len(err.Error()) > 340, false)
					equal(t, "the cursor", at, before)
				}
			}
		})
	}
}

// TestDamagedCursors: a cursor with a negative number, another name, or a list
// that is too long is refused. Only a Mix may begin, because it asks a source
// when it draws it, and end, if it asks that source no more.
func TestDamagedCursors(t *testing.T) {
	places, pasts := regexp.MustCompile(`[0-9]+|\[|"by":"`), regexp.MustCompile(`"past":"\w*"`)
	eachStage(t, Indices(Sequential(8)), 5, func(t *testing.T, s ints) {
		want := readAll(t, s)
		for k, at := range cursors(t, s)[:len(want)] {
			text := at.String()
			past := pasts.FindStringIndex(text) // only compared, by stages behind
			for _, place := range places.FindAllStringIndex(text, -1) {
				if past != nil && past[0] < place[0] && place[0] < past[1] {
					continue
				}
				old := text[place[0]:place[1]]
				bad := cmp.Or(map[string]string{"[": "[null,", `"by":"`: `"by":"not `}[old], "-1")
				damaged := text[:place[0]] + bad + text[place[1]:]
				got, rest := resume(t, s, fromJSON(t, damaged)), want[k:]
				if n := min(len(got)-1, len(rest)); n >= 0 && strings.HasPrefix(got[n], "refused ") {
					got, rest = got[:n], rest[:n]
				}
				failIf(t, !slices.Equal(got, rest) || len(rest) > 0 && !strings.Contains(t.Name(), "/Mix"),
					"from %s:\n got %q\nwant a refusal, or %q", damaged, got, rest)
			}
		}
	})
}

// TestBadStreams: arguments that can never be right panic, with what was given
// and what is allowed.
func TestBadStreams(t *testing.T) {
	s := counting(3)
	panics(t, map[string]func(){
		"Stream.Filter: keep is nil":                           func() { s.Filter(nil) },
		"Stream.Take: n is -1, must not be negative":           func() { s.Take(-1) },
		"Stream.Shard: Rank is {Index: 2, Count: 2}; … 0 to 1": func() { s.Shard(Rank{2, 2}, PadTail) },
		"Stream.Shard: the tail is 3, must be PadTail":         func() { s.Shard(Rank{}, 3) },
		"Stream.Repeat: times is 0, must be at least 1; Cycle": func() { s.Repeat(0) },
		"Stream.Cycle: the stream is the zero Stream":          func() { ints{}.Cycle() },
		"Stream.OnError: f is nil":                             func() { s.OnError(nil) },
		"Stream.Run: the stream is the zero Stream; look at":   func() { ints{}.Run(t.Context(), new(Cursor)) },
		"Stream.Items: the stream is the zero Stream; look at": func() { ints{}.Items(t.Context(), Cursor{}) },
		"NewStream: items is nil":                              func() { NewStream[int](nil) },
		"NewStage: items is nil":                               func() { NewStage[int, int](s, false, nil) },
		"NewStage: the stream is the zero Stream":              func() { NewStage[int, int](ints{}, false, nil) },
		"Stream.Shuffle: the size is 0, must be 1 to":          func() { s.Shuffle(0, 1) },
		"Stream.Shuffle: the size is":                          func() { s.Shuffle(math.MaxInt/4+1, 1) },
		"Stream.Prefetch: n is 0, must be 1 to 16777216":       func() { s.Prefetch(0) },
		"Stream.Prefetch: n is":                                func() { s.Prefetch(math.MaxInt) },
		"FromSeq: seq is nil":                                  func() { FromSeq[int](nil) },
		"Indices: the sampler is nil":                          func() { Indices(nil) },
		"Map: workers is -1, must be 0 to":                     func() { Map(s, -1, quick) },
		"Map: f is nil":                                        func() { Map[int, int](s, 1, nil) },
		"Batch: size is 0, must be positive":                   func() { Batch(s, 0, List[int]) },
		"Batch: the Collate is nil":                            func() { Batch[int, []int](s, 1, nil) },
		"Mix: there is no source":                              func() { Mix[int](MixOptions{}) },
		"Mix: there are 1 weights for 2 sources":               func() { Mix(MixOptions{Weights: []float64{1}}, s, s) },
		"Mix: Weights[1] is 0, must be positive and finite":    func() { Mix(MixOptions{Weights: []float64{1, 0}}, s, s) },
		"Mix: Weights[0] is NaN":                               func() { Mix(MixOptions{Weights: []float64{math.NaN()}}, s) },
		"Mix: Weights[0] is +Inf":                              func() { Mix(MixOptions{Weights: []float64{math.Inf(1)}}, s) },
		"Mix: Stop is 4, must be StopAtLast":                   func() { Mix(MixOptions{Stop: 4}, s) },
		"Mix: Stop is -1":                                      func() { Mix(MixOptions{Stop: -1}, s) },
		"Chain: the stream is the zero Stream":                 func() { Chain(s, ints{}) },
		"Mix: the stream is the zero Stream":                   func() { Mix(MixOptions{}, s, ints{}) },
		"Unbatch: the stream is the zero Stream":               func() { Unbatch(lists{}) },
		"Zip: the stream is the zero Stream":                   func() { Zip(s, ints{}) },
		"the loader is nil; look at the error of New":          func() { StreamOf[int](nil) },
	})
	unordered := newLoader(t, numbers(3), Options{Unordered: true})
	saysAll(t, ending(StreamOf(unordered).Epoch(t.Context(), 0)),
		"Options.Unordered is no stream, because a resume could lose samples: use its Run, or leave")
	for _, stage := range stages {
		runRow(t, stage.name, func(t *testing.T) {
			name := stage.name + ": "
			if _, method := reflect.TypeFor[ints]().MethodByName(stage.name); method {
				name = "Stream." + name
			}
			saysAll(t, panicOf(func() { stage.of(ints{}, 0, func() ints { return s }) }), "dataloader: "+name, "stream", "is the zero Stream")
		})
	}
}

// TestStreamsWithoutItems: an endless stage whose source is empty cannot be
// continued, and stages behind it pass that error on. A context ends what
// yields nothing: empty epochs, and items that a resume skips.
func TestStreamsWithoutItems(t *testing.T) {
	empty, three, forever, equally := counting(0), counting(3), MixOptions{Stop: CycleForever}, []float64{1, 1, 1}
	for says, s := range map[string]ints{
		"Stream.Cycle: the stream": empty.Cycle(),
		"Mix: source 0":            Mix(forever, empty, three),
		"Mix: source 1":            Mix(MixOptions{Stop: CycleUntilLast}, three, empty),
		"Mix: source 2":            Mix(MixOptions{Stop: CycleForever, Weights: equally}, three, three, empty),
	} {
		runRow(t, says, func(t *testing.T) {
			for _, s := range []ints{s, Map(s.Prefetch(2).Shuffle(2, 0), 2, quick)} {
				got := outcomes(s.Epoch(t.Context(), 2))
				equal(t, "the last", got[len(got)-1], "error dataloader: "+says+" has no items in epoch 2")
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBad)
	equal(t, "epochs", outcomes(Indices(Sequential(0)).Repeat(math.MaxInt).Epoch(ctx, 0)), []string{"error bad sample"})
	far := Cursor{Pos: math.MaxInt / 2, State: stageState{By: "FromSeq"}}
	equal(t, "skipped", outcomes(counting(-1).Run(ctx, &far)), []string{"error bad sample"})
}

// TestReadAhead: no stage reads before the range, further ahead of the loop
// than it says, or after it was left. And each item is handed over as soon as
// the source has yielded what the item needs, not with the source's next item.
func TestReadAhead(t *testing.T) {
	for _, c := range []struct {
		name  string
		of    func(ints) ints
		needs []int // how many items of the source each of the first items needs
		ahead int
	}{
		{"Filter", func(s ints) ints { return s.Filter(func(i int) bool { return i%2 == 1 }) }, []int{2, 4, 6}, 0},
		{"Take", func(s ints) ints { return s.Take(2) }, []int{1, 2}, 0},
		{"Chain", func(s ints) ints { return Chain(s, s) }, []int{1, 2, 3}, 0},
		{"Shuffle", func(s ints) ints { return s.Shuffle(1, 0) }, []int{1, 2, 3}, 0},
		{"Mix", func(s ints) ints { return Mix(MixOptions{}, s, counting(9)) }, []int{1, 1, 2}, 8},
		{"Shard", func(s ints) ints { return s.Shard(Rank{1, 3}, UnevenTail) }, []int{3, 6, 9}, 0},
		{"Batch", func(s ints) ints { return Unbatch(Batch(s, 2, List[int])) }, []int{2, 2, 4}, 0},
		{"Map, inline", func(s ints) ints { return Map(s, 0, quick) }, []int{1, 2, 3}, 0},
		{"Map, 3 workers", func(s ints) ints { return Map(s, 3, quick) }, []int{1, 2, 3, 4}, 24},
		{"Prefetch", func(s ints) ints { return s.Prefetch(50) }, []int{1, 2, 3, 4}, 50},
	} {
		runRow(t, c.name, func(t *testing.T) {
			for _, delay := range []time.Duration{0, time.Second} {
				inBubble(t, func(t *testing.T) {
					source := &feed{n: 100, before: func(context.Context, int) { time.Sleep(delay) }}
					s := c.of(source.stream())
					equal(t, "read before the range", source.read.Load(), 0)
					start, got := time.Now(), []int{}
					for range s.Epoch(t.Context(), 0) {
						synctest.Wait() // for what is read ahead
						now := int(source.read.Load()) - c.ahead
						if delay > 0 {
							now = int(time.Since(start) / delay)
						}
						if got = append(got, now); len(got) == len(c.needs) {
							break
						}
					}
					equal(t, "needed", got, c.needs)
					equal(t, "the source has been left", source.left.Load(), 1)
				})
			}
		})
	}
}

// ## sampler.go: Shuffle, Mix and Shard

// TestItemsAreForgotten: what a stage has handed over can be collected while
// the loop goes on, and what Map has used before the loop has the result.
// Shuffle keeps nine cursors.
func TestItemsAreForgotten(t *testing.T) {
	type block = [4096]byte
	var values, states []weak.Pointer[block]
	source := NewStream(func(context.Context, Cursor) iter.Seq2[Item[*block], error] {
		values, states = nil, nil
		return func(yield func(Item[*block], error) bool) {
			for pos := 1; pos <= 60; pos++ {
				value, state := new(block), new(block)
				values, states = append(values, weak.Make(value)), append(states, weak.Make(state))
				if !yield(Item[*block]{value, nil, Cursor{0, pos, state}}, nil) {
					return
				}
			}
		}
	})
	atMost := func(most int, all []weak.Pointer[block]) {
		t.Helper()
		n := alive(all)
		failIf(t, n > most, "%d of %d are in memory, want at most %d", n, len(all), most)
	}
	for _, c := range []struct {
		name   string
		s      Stream[*block]
		states int // how many may be in memory
	}{
		{"Shuffle", source.Shuffle(8, 1), 9 + 3}, // the last one, of the source, of Shuffle, and in the loop's cursor
		{"Prefetch", source.Prefetch(64), 60},
		{"Map", Map(source, 8, quick), 60},
		{"Mix", Mix(MixOptions{}, source), 60},
	} {
		runRowInBubble(t, c.name, func(t *testing.T) {
			given := 0
			for range c.s.Epoch(t.Context(), 0) {
				synctest.Wait()
				if given++; given%7 == 4 {
					atMost(len(values)-given+2, values) // with the item in hand, and perhaps the last one
					atMost(c.states, states)
				}
			}
		})
	}
	for range Batch(source, 8, func(_ int, samples []*block) (int, error) { return len(samples), nil }).Epoch(t.Context(), 0) {
		atMost(1, values) // perhaps the last one
	}
	inBubble(t, func(t *testing.T) {
		for range Map(source, 1, func(context.Context, *block) (int, error) { return 0, nil }).Epoch(t.Context(), 0) {
			if synctest.Wait(); len(values)%8 == 4 { // for a window of results
				atMost(1, values)
			}
		}
	})
}

// TestResumes: a resume fetches each item after the cursor once, and no item
// before it. Only Shuffle needs some items before it again, at most 3⅜ × its
// size, of which the last ones have not been yielded.
func TestResumes(t *testing.T) {
	const n, size = 80, 8
	var fetched atomic.Int64
	fetch := func(_ context.Context, i int) (int, error) { fetched.Add(1); return i, nil }
	for workers := range 3 {
		items := Map(Indices(Random(n, 1)).Prefetch(3), workers, fetch)
		for again, s := range map[int]ints{0: Map(Batch(items, 4, List[int]), 0, head), 3*size + 3*size/8: items.Shuffle(size, 1)} {
			for _, at := range cursors(t, s) {
				fetched.Store(0)
				rest := n - at.Pos
				collect(t, s.Run(t.Context(), &at))
				more := int(fetched.Load()) - rest
				equal(t, fmt.Sprintf("a resume fetches %d of %d items more: too many", more, rest), more < 0 || more > again, false)
			}
		}
	}
}

// TestStreamRanks: after a stop in lock-step any rank's cursor resumes all
// ranks, and another number of ranks, without loss or repeat, even if items
// that failed before Shard have healed by then and a Filter leaves them out.
func TestStreamRanks(t *testing.T) {
	var gone []int
	source, sick := &feed{n: 24}, []int{3, 7, 8, 20, 23}
	here := func(i int) bool { return !slices.Contains(gone, i) }
	part := func(rank Rank) ints {
		return Map(source.stream().Shuffle(5, 1).Filter(here).Shard(rank, UnevenTail), 1, quick).Prefetch(2)
	}
	for k := range unlessShort(24, 8) {
		before, steps := 1+k%4, []int{1, 2, 5}[k/8]
		epoch := func(rank, ranks int) []string { return readAll(t, part(Rank{rank, ranks})) }
		var given []string
		gone = [][]int{nil, sick}[k/4%2]
		source.bad = gone
		for rank := range before {
			given = append(given, epoch(rank, before)[:steps]...)
		}
		given = slices.DeleteFunc(given, func(x string) bool { return strings.HasPrefix(x, "error item") })
		at := throughJSON(t, cursors(t, part(Rank{steps % before, before}))[steps])
		source.bad = nil
		for _, after := range []int{1, 3, before, 12} {
			all := slices.Clone(given)
			for rank := range after {
				rest := resume(t, part(Rank{rank, after}), at)
				if all = append(all, rest...); after == before && gone == nil {
					equal(t, "the same ranks", rest, epoch(rank, after)[steps:])
				}
			}
			what := fmt.Sprintf("%d ranks, after %d steps %d ranks, without %v", before, steps, after, gone)
			equal(t, what, sorted(all), sorted(epoch(0, 1)))
		}
	}
}

// A list of numbers is an item of the pipelines of TestRanks.
type lists = Stream[[]int]

// listed is the stream of n lists of one number each, from first on.
func listed(first, n int) lists {
	return Map(Indices(Sequential(n)), 0, func(_ context.Context, i int) ([]int, error) {
		return []int{first + i}, nil
	})
}

// loaded is the stream of a loader of n numbers, of which the bad ones fail.
func loaded(n int, opts Options, bad ...int) lists {
	return StreamOf(must(New(failing(n, bad...), List[int], opts)))
}

// aPartOf is a rank of four as the part of a part of two, and any other rank as
// it is.
func aPartOf(rank Rank) (Rank, Rank) {
	if rank.Count != 4 {
		return Rank{}, rank
	}
	return Rank{rank.Index / 2, 2}, Rank{rank.Index % 2, 2}
}

// A when says in which Tail ranks are in step.
type when int

const (
	inNoTail when = iota
	unlessUneven
	inEachTail
)

// is reports whether ranks are in step in the tail.
func (w when) is(tail Tail) bool { return w == inEachTail || w == unlessUneven && tail != UnevenTail }

// A rankStage is a stage of TestRanks. It is whole if the items of all ranks
// together do not depend on the number of ranks.
type rankStage struct {
	name   string
	inStep when
	whole  bool
	of     func(s lists, rank Rank, tail Tail) lists
}

// rankDeals are the deals of TestRanks. Some have two sources, one of which is
// dealt out in another way, or not at all.
var rankDeals = []struct {
	name   string
	inStep when
	whole  bool
	of     func(n int, rank Rank, tail Tail) lists
}{
	{"Shard", inEachTail, true, func(n int, rank Rank, tail Tail) lists { return listed(0, n).Shard(rank, tail) }},
	{"StreamOf", inEachTail, true, func(n int, rank Rank, tail Tail) lists {
		return loaded(n, Options{Rank: rank, Tail: tail, Seed: 1<<63 + 1})
	}},
	{"StreamOf in twos", inEachTail, false, func(n int, rank Rank, tail Tail) lists {
		return loaded(n+3, Options{Rank: rank, Tail: tail, BatchSize: 2})
	}},
	{"StreamOf with OnError", unlessUneven, false, func(n int, rank Rank, tail Tail) lists {
		return loaded(n, Options{Rank: rank, Tail: tail, OnError: dropBad}, 1, 2)
	}},
	{"Shard of Shard", unlessUneven, true, func(n int, rank Rank, tail Tail) lists {
		outer, inner := aPartOf(rank)
		return listed(0, n).Shard(outer, tail).Shard(inner, tail)
	}},
	{"Shard of StreamOf", unlessUneven, true, func(n int, rank Rank, tail Tail) lists {
		outer, inner := aPartOf(rank)
		return loaded(n, Options{Rank: outer, Tail: tail}).Shard(inner, tail)
	}},
	{"Chain of rotated ranks", unlessUneven, true, func(n int, rank Rank, tail Tail) lists {
		next := Rank{(rank.Index + 1) % rank.Count, rank.Count}
		return Chain(listed(0, n).Shard(rank, tail), listed(50, n).Shard(next, tail))
	}},
	{"Shard of shuffled StreamOf", inEachTail, true, func(n int, rank Rank, tail Tail) lists {
		return loaded(n, Options{}).Shuffle(2, 1).Filter(func([]int) bool { return true }).Shard(rank, tail)
	}},
	{"Shard of two readers", inEachTail, true, func(n int, rank Rank, tail Tail) lists {
		names, shards := tenShards()
		tar := func(part Rank) lists {
			return Map(must(Tar(names[:n], TarOptions{Rank: part, Open: inMemory(shards)})), 0,
				func(_ context.Context, r Record) ([]int, error) {
					return []int{int(r.Key[0]-'0')*2 + int(r.Key[1]-'a')}, nil
				})
		}
		return Mix(MixOptions{}, tar(Rank{0, 2}), tar(Rank{1, 2})).Shuffle(2, 1).Shard(rank, tail)
	}},
	{"Chain of dealt and undealt", unlessUneven, false, func(n int, rank Rank, tail Tail) lists {
		return Chain(listed(0, n).Shard(rank, tail), listed(50, 3))
	}},
	{"Zip of undealt and dealt", inEachTail, false, func(n int, rank Rank, tail Tail) lists {
		return Map(Zip(listed(50, n), listed(0, n).Shard(rank, tail)), 0, joined)
	}},
	{"Mix of reflected ranks", unlessUneven, true, func(n int, rank Rank, tail Tail) lists {
		last := Rank{rank.Count - 1 - rank.Index, rank.Count}
		return Mix(MixOptions{}, listed(0, n).Shard(rank, tail), listed(50, n).Shard(last, tail))
	}},
}

// rankStages are the stages of TestRanks, some of them a user's.
var rankStages = []rankStage{
	{"Map", inEachTail, true, func(s lists, _ Rank, _ Tail) lists { return Map(s, 0, quick) }},
	{"Prefetch", inEachTail, true, func(s lists, _ Rank, _ Tail) lists {
		return Map(s, 1, quick).Prefetch(1)
	}},
	{"failing", inEachTail, true, func(s lists, _ Rank, _ Tail) lists { return Map(s, 0, failThirds) }},
	{"Take", inEachTail, false, func(s lists, _ Rank, _ Tail) lists { return s.Take(2) }},
	{"Zip", inEachTail, false, func(s lists, _ Rank, _ Tail) lists {
		return Map(Zip(listed(100, 3), s), 0, joined)
	}},
	{"Zip of dealt", inEachTail, false, func(s lists, rank Rank, tail Tail) lists {
		return Map(Zip(s, listed(100, 5).Shard(rank, tail)), 0, joined)
	}},
	{"Batch", unlessUneven, false, func(s lists, _ Rank, _ Tail) lists {
		return Batch(s, 2, func(_ []int, all [][]int) ([]int, error) { return slices.Concat(all...), nil })
	}},
	{"Shard", unlessUneven, false, func(s lists, _ Rank, tail Tail) lists { return s.Shard(Rank{0, 2}, tail) }},
	{"Filter", inNoTail, true, func(s lists, _ Rank, _ Tail) lists { return s.Filter(notThirds) }},
	{"Filter odd", inNoTail, true, func(s lists, _ Rank, _ Tail) lists { return s.Filter(odd) }},
	{"OnError", inNoTail, true, func(s lists, _ Rank, _ Tail) lists {
		return Map(s, 0, failThirds).OnError(dropBad)
	}},
	{"Unbatch", inNoTail, true, func(s lists, _ Rank, _ Tail) lists {
		return Map(Unbatch(s), 0, func(_ context.Context, i int) ([]int, error) { return []int{i}, nil })
	}},
	{"Repeat", unlessUneven, true, func(s lists, _ Rank, _ Tail) lists { return s.Repeat(2) }},
	{"Chain of dealt", unlessUneven, true, func(s lists, rank Rank, tail Tail) lists {
		return Chain(s, listed(100, 3).Shard(rank, tail))
	}},
	{"Chain", unlessUneven, false, func(s lists, _ Rank, _ Tail) lists { return Chain(s, listed(100, 3)) }},
	{"Chain, last", unlessUneven, false, func(s lists, _ Rank, _ Tail) lists { return Chain(listed(100, 2), s) }},
	{"Chain of odd", inNoTail, false, func(s lists, _ Rank, _ Tail) lists {
		return Chain(s.Filter(odd), listed(100, 3))
	}},
	{"Mix of dealt", unlessUneven, true, func(s lists, rank Rank, tail Tail) lists {
		return Mix(MixOptions{}, s, listed(100, 5).Shard(rank, tail))
	}},
	{"Mix", unlessUneven, false, func(s lists, _ Rank, _ Tail) lists {
		return Mix(MixOptions{}, listed(100, 4), s)
	}},
	{"Mix of odd", inNoTail, false, func(s lists, _ Rank, _ Tail) lists {
		return Mix(MixOptions{}, s.Filter(odd), listed(100, 3))
	}},
	{"Mix by weight", unlessUneven, false, func(s lists, _ Rank, _ Tail) lists {
		return Mix(MixOptions{Weights: []float64{2, 1}}, s, listed(100, 3))
	}},
	{"Mix, first", unlessUneven, false, func(s lists, _ Rank, _ Tail) lists {
		return Mix(MixOptions{Stop: StopAtFirst}, s, listed(100, 3))
	}},
	{"Mix, cycle", unlessUneven, false, func(s lists, _ Rank, _ Tail) lists {
		return Mix(MixOptions{Stop: CycleUntilLast}, listed(100, 3), s)
	}},
	{"Shuffle", inNoTail, true, func(s lists, _ Rank, _ Tail) lists { return s.Shuffle(2, 1) }},
	{"one's own, drops", inNoTail, true, func(s lists, _ Rank, _ Tail) lists { return drops(s) }},
	{"one's own, passes on", inEachTail, true, func(s lists, _ Rank, _ Tail) lists {
		return timed(s, new(stopwatch))
	}},
	{"one's own, counts", inNoTail, true, func(s lists, _ Rank, _ Tail) lists { return counts(s) }},
}

// drops is a stage of a user's that leaves out even lists, and passes the
// cursors of the others on.
func drops(s lists) lists {
	return NewStage(s, false, func(ctx context.Context, s lists, from Cursor) iter.Seq2[Item[[]int], error] {
		return func(yield func(Item[[]int], error) bool) {
			for item, err := range s.Items(ctx, from) {
				if (err != nil || item.Err != nil || odd(item.Value)) && !yield(item, err) {
					return
				}
			}
		}
	})
}

// counts is a stage of a user's that counts items, and makes its own cursors.
func counts(s lists) lists {
	type state struct {
		By     string
		Source Cursor
	}
	return NewStage(s, false, func(ctx context.Context, s lists, from Cursor) iter.Seq2[Item[[]int], error] {
		return func(yield func(Item[[]int], error) bool) {
			at := state{Source: Cursor{Epoch: from.Epoch}}
			if err := from.Load(&at); err != nil || at.By != "counts" && from.Pos > 0 {
				yield(Item[[]int]{}, fmt.Errorf("%w: %w", ErrCursor, err))
				return
			}
			pos := from.Pos
			for item, err := range s.Items(ctx, at.Source) {
				pos++
				item.Next = Cursor{from.Epoch, pos, state{"counts", item.Next}}
				if !yield(item, err) {
					return
				}
			}
		}
	})
}

// notThirds and odd leave out lists that begin with a multiple of three, or
// with an even number.
func notThirds(list []int) bool { return list[0]%3 > 0 }

func odd(list []int) bool { return list[0]%2 > 0 }

// failThirds fails for lists that begin with one more than a multiple of three.
func failThirds(_ context.Context, list []int) ([]int, error) {
	if list[0]%3 == 1 {
		return nil, fmt.Errorf("%v is bad", list)
	}
	return list, nil
}

// joined is the list of both lists of a pair.
func joined(_ context.Context, p Pair[[]int, []int]) ([]int, error) {
	return slices.Concat(p.First, p.Second), nil
}

var everyPipeline = flag.Bool("ranks", false, "TestRanks tries all pipelines, for some minutes")

// TestOwners: the cursor of a rank that is out of step names the rank. Another
// rank's refusal says which stage puts the ranks out of step, and what to do,
// fresh and saved, and whatever stands behind that stage.
func TestOwners(t *testing.T) {
	part := func(rank Rank) lists { return listed(0, 9).Shard(rank, UnevenTail) }
	even := func(rank Rank) lists { return listed(0, 18).Shard(rank, DropTail) }
	every := func([]int) bool { return true }
	for stage, of := range map[string]func(rank Rank) lists{
		"Filter": func(rank Rank) lists { return even(rank).Filter(every) },
		"OnError": func(rank Rank) lists {
			return Map(Zip(listed(0, 9), even(rank)), 0, joined).OnError(dropBad)
		},
		"Unbatch":   func(rank Rank) lists { return Batch(Unbatch(even(rank)), 1, List[int]) },
		"Repeat(2)": func(rank Rank) lists { return part(rank).Repeat(2) },
		"Cycle":     func(rank Rank) lists { return part(rank).Cycle().Take(9) },
		"Chain(2)":  func(rank Rank) lists { return Chain(part(rank), listed(0, 9)) },
		"Mix":       func(rank Rank) lists { return Mix(MixOptions{}, part(rank), listed(0, 9)) },
		"Batch":     func(rank Rank) lists { return Unbatch(Batch(part(rank), 2, List[[]int])) },
		"Shard":     func(rank Rank) lists { return listed(0, 30).Shard(rank, UnevenTail).Shard(Rank{0, 2}, PadTail) },
		"Shuffle":   func(rank Rank) lists { return even(rank).Shuffle(3, 1) },
		"OnError under UnevenTail": func(rank Rank) lists {
			return loaded(9, Options{Rank: rank, Tail: UnevenTail, OnError: dropBad})
		},
	} {
		runRow(t, stage, func(t *testing.T) {
			behind := func(rank Rank) lists { return Map(of(rank).Take(5), 1, quick).Prefetch(2) }
			for k, of := range []func(rank Rank) lists{of, behind} {
				at := cursors(t, of(Rank{1, 2}))[2]
				for _, other := range []Rank{{0, 2}, {0, 1}, {1, 3}} {
					want := fmt.Sprintf("made by rank {1 2}, this is rank %v, and %s puts the ranks out of step: "+
						"save one cursor for each rank, and resume as many ranks", other, stage)
					for _, from := range []Cursor{at, throughJSON(t, at)} {
						err := ending(of(other).Run(t.Context(), &from))
						saysAll(t, because(t, ErrCursor, err), want)
					}
				}
				equal(t, fmt.Sprint("its own rank, ", k), resume(t, of(Rank{1, 2}), at), readAll(t, of(Rank{1, 2}))[2:])
				all := cursors(t, of(Rank{1, 2}))
				last := all[len(all)-1].String()
				for item, err := range of(Rank{1, 2}).Items(t.Context(), throughJSON(t, all[len(all)-2])) {
					failIf(t, err != nil || item.Next.String() != last, "%v, and then %v, want %s", err, item.Next, last)
				}
			}
		})
	}
	filtered := part(Rank{1, 2}).Filter(every)
	saysAll(t, ending(part(Rank{0, 2}).Take(9).Run(t.Context(), ptr(cursors(t, filtered.Take(9))[1]))),
		"made by rank {1 2}, and the ranks were out of step; here no stage puts ranks out of step")
	inside := Map(listed(0, 1), 0, func(ctx context.Context, _ []int) ([]int, error) {
		for item := range filtered.Items(ctx, Cursor{}) { // a stream of its own
			equal(t, "whether a cursor in Map has an owner", item.Next.String() == cursors(t, filtered)[1].String(), true)
			break
		}
		return nil, nil
	})
	equal(t, "cursors of Map", len(cursors(t, inside.Filter(every))), 2)
	source := &feed{n: 9}
	cursors(t, Chain(source.stream().Shard(Rank{1, 2}, UnevenTail), source.stream()))
	equal(t, "how often a source was read", source.left.Load(), 2)
	for _, err := range loaded(9, Options{Rank: Rank{1, 2}}, 5).Filter(every).Epoch(t.Context(), 0) {
		if bad := (*SampleError)(nil); errors.As(err, &bad) {
			equal(t, "the batch and the sample that failed", [2]int{bad.Batch, bad.Index}, [2]int{2, 5})
		}
	}
	opts := Options{Rank: Rank{1, 2}, Tail: UnevenTail, OnError: dropBad}
	loader := func(index int) *DataLoader[[]int] {
		opts.Rank.Index = index
		return newLoader(t, numbers(9), opts)
	}
	at := loader(1).At(0, 2)
	equal(t, "a loader's own rank", fmt.Sprint(collect(t, loader(1).Run(t.Context(), ptr(at)))), "[[5] [7]]")
	saysAll(t, ending(loader(0).Run(t.Context(), &at)),
		"made by rank {1 2}, this is rank {0 2}, and OnError under UnevenTail puts the ranks out of step")
}

// TestRanks: whatever pipeline of at most two stages stands behind a deal, the
// cursor of any rank resumes a rank exactly where that rank would stand after
// as many steps, or is refused. Its own rank resumes it, and so do all ranks
// that stages leave in step. Resumed on another number of ranks nothing is lost
// and nothing comes twice, and the cursor of the only rank fits any number.
func TestRanks(t *testing.T) {
	tried, counts := 0, map[bool]int{}
	defer func() { t.Logf("%d resumes were exact, %d refused", counts[false], counts[true]) }()
	for _, deal := range rankDeals {
		for k := range (len(rankStages) + 1) * (len(rankStages) + 1) {
			first, second := k/(len(rankStages)+1), k%(len(rankStages)+1) // the last number is no stage
			if first == len(rankStages) && second < first {
				continue
			}
			for n := 4; n <= 7; n++ {
				for tail := range UnevenTail + 1 {
					tried++
					if !*everyPipeline && counter(1, uint64(tried))%uint64(unlessShort(400, 3000)) > 0 {
						continue
					}
					p := pipeline{
						name: fmt.Sprintf("%s, n %d, tail %d", deal.name, n, tail),
						of:   func(rank Rank) lists { return deal.of(n, rank, tail) },
						tail: tail, inStep: deal.inStep.is(tail), whole: deal.whole, counts: counts,
					}
					for _, s := range []int{first, second} {
						if s < len(rankStages) {
							p.add(rankStages[s])
						}
					}
					runRow(t, p.name, p.check)
				}
			}
		}
	}
}

// TestBatchSizes: the cursor of a rank with batches of two resumes with batches
// of one to three, on one to three ranks. Together all ranks have what was
// left, or one of them refuses the cursor. If only the rank itself accepts it,
// that rank has what it had left.
func TestBatchSizes(t *testing.T) {
	every, exact, refusals := func([]int) bool { return true }, 0, 0
	for name, of := range map[string]func(part func(first int) lists) lists{
		"alone":    func(part func(int) lists) lists { return part(0) },
		"Prefetch": func(part func(int) lists) lists { return Map(part(0), 1, quick).Prefetch(2) },
		"Filter":   func(part func(int) lists) lists { return part(0).Filter(every) },
		"Unbatch":  func(part func(int) lists) lists { return Batch(Unbatch(part(0)), 1, List[int]) },
		"Shuffle":  func(part func(int) lists) lists { return part(0).Shuffle(2, 1) },
		"Repeat":   func(part func(int) lists) lists { return part(0).Repeat(2) },
		"Chain":    func(part func(int) lists) lists { return Chain(part(0), part(50)) },
		"Mix":      func(part func(int) lists) lists { return Mix(MixOptions{}, part(0), part(50)) },
		"mine":     func(part func(int) lists) lists { return counts(part(0)) },
		"Chain, Shuffle": func(part func(int) lists) lists {
			return Chain(part(0), part(50)).Shuffle(2, 1)
		},
	} {
		runRow(t, name, func(t *testing.T) {
			for k := range 3 * 3 * 3 * 2 * unlessShort(5, 2) {
				before, after, size, tail, n := 1+k%3, 1+k/3%3, 1+k/9%3, []Tail{PadTail, UnevenTail}[k/27%2], 4+k/54
				stream := func(rank Rank, size int) lists {
					return of(func(first int) lists {
						data := Func(n, func(_ context.Context, i int) (int, error) { return first + i, nil })
						return StreamOf(newLoader(t, data, Options{BatchSize: size, Rank: rank, Tail: tail}))
					})
				}
				var makers []rankRun
				var whole []string
				for index := range before {
					run := rankRun{stream: stream(Rank{index, before}, 2)}
					for item, err := range run.stream.Items(t.Context(), Cursor{}) {
						run.items, run.next = append(run.items, itemInWords(item, err)), append(run.next, item.Next)
					}
					makers, whole = append(makers, run), append(whole, run.items...)
				}
				for index, maker := range makers {
					for step, at := range maker.next {
						what := fmt.Sprintf("rank %d of %d after %d steps, resumed on %d ranks in batches of %d: %v",
							index, before, step+1, after, size, at)
						var all []string
						for _, run := range makers {
							all = append(all, run.first(step+1)...)
						}
						anyRefused := false
						for other := range after {
							rest, refused := resumeInWords(t, stream(Rank{other, after}, size), throughJSON(t, at))
							own := other == index && before == after
							failIf(t, refused && own && size == 2, "%s: its own cursor is refused", what)
							if own && !refused {
								equal(t, what, numbersIn(rest), numbersIn(maker.rest(step+1)))
							}
							anyRefused, all = anyRefused || refused, append(all, rest...)
						}
						if anyRefused {
							refusals++
							continue
						}
						exact++
						got, want := numbersIn(all), numbersIn(whole)
						if tail == PadTail {
							got, want = slices.Compact(got), slices.Compact(want)
						}
						equal(t, what, got, want)
					}
				}
			}
		})
	}
	t.Logf("%d resumes were exact, %d refused", exact, refusals)
}

// TestRanksAreKnown: what a stream knows of its ranks is known when it is made.
// No source is opened to be asked, and nothing depends on timing.
func TestRanksAreKnown(t *testing.T) {
	own, every := Rank{1, 2}, func(int) bool { return true }
	first := func(t *testing.T, s ints, want int) {
		t.Helper()
		for i, err := range s.Run(t.Context(), &Cursor{Epoch: 1}) {
			equal(t, "the first item", fmt.Sprint(i, err), fmt.Sprint(want, " <nil>"))
			break
		}
	}
	t.Run("a stage that joins epochs", func(t *testing.T) {
		endless := NewStage(counting(9).Shard(own, UnevenTail), false, func(
			ctx context.Context, s ints, from Cursor,
		) iter.Seq2[Item[int], error] {
			return func(yield func(Item[int], error) bool) {
				for epoch := from.Epoch; ; epoch++ {
					for item, err := range s.Items(ctx, Cursor{Epoch: epoch}) {
						if !yield(item, err) {
							return
						}
					}
				}
			}
		})
		first(t, Map(Batch(endless, 2, List[int]), 0, head), 101)
	})
	t.Run("a source without an end", func(t *testing.T) {
		counter := NewStream(func(_ context.Context, from Cursor) iter.Seq2[Item[int], error] {
			return func(yield func(Item[int], error) bool) {
				for pos := from.Pos; yield(Item[int]{0, nil, Cursor{from.Epoch, pos + 1, 1}}, nil); pos++ {
				}
			}
		})
		first(t, Map(Zip(counter, Indices(Sequential(9)).Shard(own, UnevenTail).Filter(every)), 0, add), 1)
	})
	t.Run("a source that is joined often", func(t *testing.T) {
		source := &feed{n: 9}
		s := source.stream().Shard(own, UnevenTail)
		for range 16 {
			s = Chain(s, s)
		}
		first(t, s, 101)
		equal(t, "how often the source was opened", source.left.Load(), 1)
		owner, _, _ := s.ranks.owner()
		equal(t, "the owner", owner, "{1 2}")
	})
	t.Run("an order that takes long", func(t *testing.T) {
		var made []int
		order := OrderFunc(9, func(epoch int) []int { made = append(made, epoch); return upTo(9) })
		s := Indices(order).Shard(own, UnevenTail).Cycle()
		first(t, s, 1)
		for range s.Run(t.Context(), ptr(throughJSON(t, Cursor{5, 2, &ownedState{"{1 2}", stageState{
			By: "Repeat(0)", N: 2, Source: Cursor{Epoch: 7}}}}))) {
			break
		}
		equal(t, "the epochs whose order was made", made, []int{1, 7})
	})
	t.Run("a reader that is ahead", func(t *testing.T) {
		of := func() ints { return Chain(counting(5), counting(9).Shard(own, UnevenTail)) }
		want := fmt.Sprint(cursors(t, of()))
		for range 200 {
			equal(t, "the cursors", fmt.Sprint(cursors(t, of().Prefetch(8))), want)
		}
	})
}

// TestOneForOne: a stage of a user's that says that it is one for one, and is
// not, ends with an error, and has lost nothing until then.
func TestOneForOne(t *testing.T) {
	type yielder = func(Item[int], error) bool
	stage := func(body func(all []Item[int], next Item[int], yield yielder) ([]Item[int], bool)) ints {
		return NewStage(counting(4), true, func(ctx context.Context, s ints, from Cursor) iter.Seq2[Item[int], error] {
			return func(yield func(Item[int], error) bool) {
				var all []Item[int]
				for item, err := range s.Items(ctx, from) {
					failIf(t, err != nil, "%v", err)
					var more bool
					if all, more = body(all, item, yield); !more {
						return
					}
				}
				for _, item := range all {
					if !yield(item, nil) {
						return
					}
				}
			}
		})
	}
	const says = "error dataloader: NewStage: the stage is not one for one, at "
	for name, c := range map[string]struct {
		s    ints
		want []string
	}{
		"drops item 2": {stage(func(all []Item[int], item Item[int], yield yielder) ([]Item[int], bool) {
			return nil, item.Value == 2 || yield(item, nil)
		}), []string{"0", "1", says}},
		"drops the last item": {stage(func(all []Item[int], item Item[int], yield yielder) ([]Item[int], bool) {
			return nil, item.Value == 3 || yield(item, nil)
		}), []string{"0", "1", "2", says}},
		"yields an item twice": {stage(func(all []Item[int], item Item[int], yield yielder) ([]Item[int], bool) {
			return nil, yield(item, nil) && (item.Value != 1 || yield(item, nil))
		}), []string{"0", "1", says}},
		"yields an item more": {stage(func(all []Item[int], item Item[int], yield yielder) ([]Item[int], bool) {
			return []Item[int]{{Value: 9}}, yield(item, nil)
		}), []string{"0", "1", "2", "3", says}},
		"is an item behind": {stage(func(all []Item[int], item Item[int], yield yielder) ([]Item[int], bool) {
			return []Item[int]{item}, len(all) == 0 || yield(all[0], nil)
		}), []string{says}},
		"reads all items first": {stage(func(all []Item[int], item Item[int], yield yielder) ([]Item[int], bool) {
			return append(all, item), true
		}), []string{says}},
	} {
		runRow(t, name, func(t *testing.T) {
			got := readAll(t, c.s)
			for i, g := range got {
				if strings.HasPrefix(g, says) {
					got[i] = says
				}
			}
			equal(t, name, got, c.want)
		})
	}
	sound := stage(func(all []Item[int], item Item[int], yield yielder) ([]Item[int], bool) {
		item.Next = Cursor{} // which is set to that of the source
		return nil, yield(item, nil)
	})
	equal(t, "cursors", fmt.Sprint(cursors(t, sound)), fmt.Sprint(cursors(t, counting(4))))
	checkStream(t, timed(counting(9, 3), new(stopwatch)), 2)
}

// A rankRun is what one rank does in an uninterrupted epoch.
type rankRun struct {
	stream lists
	items  []string
	next   []Cursor // the cursors after the items
}

// first returns the first k items, and rest the others.
func (r rankRun) first(k int) []string { return r.items[:min(k, len(r.items))] }

func (r rankRun) rest(k int) []string { return r.items[min(k, len(r.items)):] }

// A pipeline is one of TestRanks, and what it promises.
type pipeline struct {
	name    string
	of      func(rank Rank) lists
	tail    Tail
	inStep  bool         // whether any rank's cursor fits all ranks
	whole   bool         // whether the items of all ranks do not depend on their number
	rereads bool         // whether the cursor of the only rank may be refused on several
	counts  map[bool]int // of resumes, by whether they were refused
}

// add puts a stage behind p.
func (p *pipeline) add(s rankStage) {
	before := p.of
	p.name += ", " + s.name
	p.of = func(rank Rank) lists { return s.of(before(rank), rank, p.tail) }
	p.inStep = p.inStep && s.inStep.is(p.tail)
	p.whole = p.whole && s.whole
	p.rereads = p.rereads || s.name == "Shuffle" || s.name == "Unbatch"
}

// check resumes all cursors of 1 to 4 ranks on 1 to 4 ranks.
func (p pipeline) check(t *testing.T) {
	var runs [5][]rankRun // by the number of ranks
	for count := 1; count < len(runs); count++ {
		for index := range count {
			run := rankRun{stream: p.of(Rank{index, count})}
			for item, err := range run.stream.Items(t.Context(), Cursor{}) {
				run.items = append(run.items, itemInWords(item, err))
				if err == nil {
					run.next = append(run.next, throughJSON(t, item.Next))
				}
			}
			runs[count] = append(runs[count], run)
		}
	}
	for count, makers := range runs {
		for index, maker := range makers {
			for k, at := range maker.next {
				what := fmt.Sprintf("%s: rank %d of %d after %d steps, %v", p.name, index, count, k+1, at)
				p.checkSame(t, what, makers, index, k+1, at)
				for other := 1; other < len(runs) && p.whole && p.tail != DropTail; other++ {
					if other != count {
						p.checkOther(t, what, makers, runs[other], k+1, at)
					}
				}
			}
		}
	}
}

// checkSame resumes a cursor of the rank index on as many ranks. What comes
// before a refusal must be right, too.
func (p pipeline) checkSame(t *testing.T, what string, runs []rankRun, index, k int, at Cursor) {
	t.Helper()
	for other, run := range runs {
		got, refused := resumeInWords(t, run.stream, at)
		want := run.rest(k)
		if refused && other != index && !p.inStep {
			want = want[:min(len(want), len(got))]
		}
		if refused && (other == index || p.inStep) || !slices.Equal(got, want) {
			t.Fatalf("%s, at rank %d:\n got %q, refused %t\nwant %q", what, other, got, refused, want)
		}
		p.counts[refused]++
	}
}

// checkOther resumes a cursor on another number of ranks. Under PadTail only
// the first samples may come again.
func (p pipeline) checkOther(t *testing.T, what string, before, after []rankRun, k int, at Cursor) {
	t.Helper()
	var got, want []string
	for _, run := range before {
		got = append(got, run.first(k)...)
		want = append(want, run.items...)
	}
	for _, run := range after {
		rest, refused := resumeInWords(t, run.stream, at)
		if refused {
			mayBe := len(before) > 1 || p.rereads
			failIf(t, !mayBe, "%s: refused on %d ranks", what, len(after))
			p.counts[true]++
			return
		}
		got = append(got, rest...)
	}
	got, want = numbersIn(got), numbersIn(want)
	if p.tail == PadTail {
		got, want = slices.Compact(got), slices.Compact(want)
	}
	equal(t, fmt.Sprintf("%s, on %d ranks", what, len(after)), got, want)
	p.counts[false]++
}

// resumeInWords is resume without a refusal at the end, and whether there was
// one. A source in which an item fails when it is read again is refused, too.
func resumeInWords(t *testing.T, s lists, from Cursor) (items []string, refused bool) {
	for item, err := range s.Items(t.Context(), from) {
		if err != nil && (errors.Is(err, ErrCursor) || strings.Contains(err.Error(), "before the cursor failed")) {
			return items, true
		}
		items = append(items, itemInWords(item, err))
	}
	return items, false
}

// itemInWords is the value or the error of an item, without batch numbers,
// which depend on the number of ranks.
func itemInWords(item Item[[]int], err error) string {
	switch failed := (*SampleError)(nil); {
	case err != nil:
		return fmt.Sprint("the end: ", err)
	case errors.As(item.Err, &failed):
		return fmt.Sprint("failed: ", failed.Err)
	case item.Err != nil:
		return fmt.Sprint("failed: ", item.Err)
	}
	return fmt.Sprint(item.Value)
}

// numbersIn returns all numbers in the items, sorted.
func numbersIn(items []string) []string {
	return sorted(regexp.MustCompile(`\d+`).FindAllString(strings.Join(items, " "), -1))
}

// TestStreamTails: Shard deals a stream out as a loader deals out its samples,
// and resumes after every item. An epoch that becomes shorter while PadTail
// reads it again is an error.
func TestStreamTails(t *testing.T) {
	for n := range unlessShort(11, 5) {
		for _, rank := range []Rank{{0, 0}, {0, 2}, {1, 2}, {0, 3}, {1, 3}, {2, 3}, {0, 4}, {1, 4}, {2, 4}, {3, 4}} {
			for tail := PadTail; tail <= UnevenTail; tail++ {
				want := slices.Concat(expect(upTo(n), 0, Options{Rank: rank, Tail: tail})...)
				got := checkStream(t, counting(n).Shard(rank, tail), 0)
				equal(t, fmt.Sprintf("%d items, %+v, tail %d", n, rank, tail), fmt.Sprint(got), fmt.Sprint(want))
			}
		}
	}
	source := &feed{n: 8}
	source.before = func(_ context.Context, i int) { source.n -= 4 * max(0, 1-i) } // 4 items the first time, then none
	got := readAll(t, source.stream().Shard(Rank{2, 3}, PadTail))
	equal(t, "shorter", fmt.Sprint(got), "[2 error dataloader: Stream.Shard: epoch 0 has become shorter while it was read]")
	breaks := &feed{n: 4}
	breaks.before = func(context.Context, int) { panicIf(breaks.left.Load() > 0, "read again") }
	got = readAll(t, breaks.stream().Prefetch(1).Shard(Rank{2, 3}, PadTail))
	equal(t, "broken", fmt.Sprint(got), "[2 error dataloader: the stream: panic: dataloader: read again]")
}

// ## batch.go: Batch

// TestPipelineIsLoader: Batch of Map of Indices gives the batches of the
// classic loader, and its first one sooner.
func TestPipelineIsLoader(t *testing.T) {
	for k := range 12 * 3 {
		n, epoch := k/3, k%3
		sampler := Random(n, 5)
		pipeline := Batch(Map(Indices(sampler), 3, numbers(n).Get), 3, List[int])
		loader := newLoader(t, numbers(n), Options{Sampler: sampler, BatchSize: 3, Workers: 2})
		got := collect(t, pipeline.Epoch(t.Context(), epoch))
		equal(t, fmt.Sprintf("%d samples, epoch %d", n, epoch), got, batches(t, loader, epoch))
	}
	inBubble(t, func(t *testing.T) {
		slow := &probe{n: 64, takes: always(time.Second)}
		first := func(s Stream[[]int]) time.Duration {
			start := time.Now()
			readFirst(s.Epoch(t.Context(), 0))
			return time.Since(start)
		}
		loader := first(StreamOf(newLoader(t, slow, Options{BatchSize: 16, Workers: 8})))
		pipeline := first(Batch(Map(Indices(Sequential(64)), 8, slow.Get), 16, List[int]))
		equal(t, "the first batch", []time.Duration{loader, pipeline}, []time.Duration{16 * time.Second, 2 * time.Second})
		t.Logf("the first batch comes from a loader after %v, from the pipeline after %v", loader, pipeline)
	})
}

// ## worker.go: Map, Prefetch, and functions and readers that die

// TestRandInMap: the random numbers in f depend on the seed of the context, the
// item's epoch and place, and the Map, and not on the number of workers. The
// same holds for a loader's samples, inside and outside a Cache. A source of
// items has none.
func TestRandInMap(t *testing.T) {
	const n = 20
	draw := func(ctx context.Context, drawn []int) ([]int, error) {
		return append(slices.Clone(drawn), Rand(ctx).Int()), nil
	}
	nothing := Func(n, func(context.Context, int) ([]int, error) { return nil, nil })
	items, seeded := Map(Indices(Sequential(n)), 0, nothing.Get), WithSeed(t.Context(), 1)
	drawn := func(ctx context.Context, s Stream[[]int], workers, epoch int) []int {
		return slices.Concat(collect(t, Map(Map(Map(s, workers, draw), workers, draw), workers, draw).Epoch(ctx, epoch))...)
	}
	cached := Transform(Cache(Transform(Cache(Transform(nothing, draw)), draw)), draw)
	var all []int
	for epoch := range 3 {
		once := drawn(t.Context(), items, 0, epoch)
		equal(t, "2 workers", drawn(t.Context(), items, 2, epoch), once)
		all = append(append(all, once...), drawn(seeded, items, 2, epoch)...)
		loaded := slices.Concat(samples(t, newLoader(t, cached, Options{Workers: epoch, Seed: uint64(epoch)}), epoch)...)
		equal(t, "different numbers of a loader", distinct(loaded), 3*n)
	}
	equal(t, "different numbers", distinct(all), 3*2*3*n)
	behind := Map(Unbatch(StreamOf(newLoader(t, Transform(nothing, draw), Options{}))), 0, draw) // the seeds are equal
	both := slices.Concat(collect(t, behind.Epoch(t.Context(), 0))...)
	equal(t, "different numbers behind a loader", distinct(both), 2*n)
	opts := Options{Tail: DropTail}
	deal := func(rank Rank) Stream[[]int] { return items.Shard(rank, DropTail) }
	loaded := func(rank Rank) Stream[[][]int] {
		opts.Rank = rank
		return StreamOf(newLoader(t, nothing, opts))
	}
	first := func(_ context.Context, batch [][]int) ([]int, error) { return batch[0], nil }
	names, shards := tenShards()
	empty := func(context.Context, Record) ([]int, error) { return nil, nil }
	for name, of := range map[string]func(rank Rank) Stream[[]int]{
		"Shard":             deal,
		"Shard and Take":    func(rank Rank) Stream[[]int] { return deal(rank).Take(5) },
		"Shard and Shuffle": func(rank Rank) Stream[[]int] { return deal(rank).Shuffle(3, 1) },
		"Shard and Mix":     func(rank Rank) Stream[[]int] { return Mix(MixOptions{}, deal(rank)).Take(5) },
		"Shard in Zip": func(rank Rank) Stream[[]int] {
			return Map(Zip(items, deal(rank)), 0, func(context.Context, Pair[[]int, []int]) ([]int, error) {
				return nil, nil
			})
		},
		"Shard of Shard": func(rank Rank) Stream[[]int] {
			return items.Shard(Rank{rank.Index % 2, 2}, DropTail).Shard(Rank{rank.Index / 2, 2}, DropTail).Take(5)
		},
		"a batch of a Mix of dealt and undealt": func(rank Rank) Stream[[]int] {
			mix := Mix(MixOptions{}, deal(rank), items)
			return Map(Batch(mix, 2, List[[]int]), 0, first)
		},
		"a Mix of dealt and undealt, shuffled": func(rank Rank) Stream[[]int] {
			return Mix(MixOptions{}, items, deal(rank)).Shuffle(3, 1)
		},
		"a Chain of dealt and undealt, shuffled": func(rank Rank) Stream[[]int] {
			return Chain(deal(rank), items).Shuffle(50, 1)
		},
		"a Chain of rotated ranks": func(rank Rank) Stream[[]int] {
			return Chain(deal(rank).Take(1), deal(Rank{(rank.Index + 1) % 4, 4}))
		},
		"a stage of one's own": func(rank Rank) Stream[[]int] { return counts(deal(rank)) },
		"StreamOf":             func(rank Rank) Stream[[]int] { return Map(loaded(rank), 0, first) },
		"StreamOf and Unbatch": func(rank Rank) Stream[[]int] { return Unbatch(loaded(rank)) },
		"Tar": func(rank Rank) Stream[[]int] {
			return Map(must(Tar(names, TarOptions{Rank: rank, Open: inMemory(shards)})), 0, empty).Take(5)
		},
	} {
		runRow(t, name, func(t *testing.T) {
			var ranks []int
			for rank := range 4 {
				ranks = append(ranks, drawn(t.Context(), of(Rank{rank, 4}).Take(2), rank%2, 0)...)
			}
			equal(t, "different numbers of ranks", distinct(ranks), 4*2*3)
		})
	}
	alone := drawn(t.Context(), items, 0, 0)
	for rank := range 3 {
		for k, number := range drawn(t.Context(), items.Shard(Rank{rank, 3}, PadTail), 0, 0) {
			if pos := 3*(k/3) + rank; pos < n {
				equal(t, fmt.Sprint("number of position ", pos, " on three ranks"), number, alone[3*pos+k%3])
			}
		}
	}
	source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] { return one(Rand(ctx).Int(), nil) })
	random := source.Repeat(n)
	mix := func(other ints) []int {
		return collect(t, Mix(MixOptions{Stop: StopAtLast}, random, other).Epoch(WithSeed(t.Context(), 1), 0))
	}
	mixed := mix(random) // each source draws in a goroutine of its own
	for k, other := range mix(Indices(Sequential(n))) {
		equal(t, "a source draws alone", other == mixed[k], k%2 == 0)
	}
	equal(t, "different numbers of two sources", distinct(mixed), 2*n)
	for workers := range 2 {
		saysAll(t, ending(Map(source, workers, quick).Epoch(seeded, 0)), "Rand: the context is from no loader")
	}
}

// TestWorkersOfMap: all workers of a Map work, and each knows its number.
func TestWorkersOfMap(t *testing.T) {
	eachWorkers(t, []int{0, 1, 2, 3}, func(t *testing.T, workers int) {
		mapped := Map(Indices(Sequential(12)), workers, func(ctx context.Context, _ int) (int, error) {
			time.Sleep(time.Second)
			return Worker(WithSeed(ctx, 1)), nil
		})
		numbers := slices.Compact(sorted(collect(t, mapped.Epoch(t.Context(), 0))))
		equal(t, "the workers", numbers, [][]int{{-1}, {0}, {0, 1}, {0, 1, 2}}[workers])
	})
}

// TestStreamsThatDie: a panic in a source is the last error, and in a function
// of a stage it fails the item. In the goroutines of a stage that is so for
// runtime.Goexit too. All goroutines are joined.
func TestStreamsThatDie(t *testing.T) {
	for what, die := range map[string]func(){"panic: ouch": func() { panic("ouch") }, "runtime.Goexit was called": runtime.Goexit} {
		runRow(t, what, func(t *testing.T) {
			f := func(_ context.Context, i int) (int, error) {
				if i%100 == 1 {
					die()
				}
				return i, nil
			}
			source := (&feed{n: 1, before: func(ctx context.Context, i int) { f(ctx, i) }}).stream()
			failing := Map(source, 0, func(_ context.Context, i int) (int, error) { return i, errBad })
			atOnce := NewStream(func(context.Context, Cursor) iter.Seq2[Item[int], error] { die(); return nil })
			alone, failed := "[error dataloader: the stream: "+what+"]", "[300 error Map: "+what+" 302]"
			broken := "[300 " + alone[1:]
			dies := func(s ints, want string) {
				t.Helper()
				inBubble(t, func(t *testing.T) { equal(t, "outcomes", fmt.Sprint(outcomes(s.Epoch(t.Context(), 3))), want) })
			}
			dies(Unbatch(Batch(source.Prefetch(3), 2, List[int])), alone)  // no short batch
			dies(Unbatch(Batch(failing.Prefetch(3), 2, List[int])), alone) // not even a failed one
			dies(source.Prefetch(3).Shuffle(1000, 1), alone)               // no items that wait
			second := strings.Replace(broken, "error ", "error Mix: source 1: ", 1)
			dies(Mix(MixOptions{}, counting(1), atOnce), second)
			dies(Mix(MixOptions{}, counting(1), source, counting(1)), "[300 300 "+second[1:])
			for workers := 1; workers < 3; workers++ {
				dies(source.Prefetch(workers), broken)
				dies(Map(source, workers, quick), broken)
				dies(atOnce.Prefetch(workers), alone)
				dies(Map(atOnce, workers, quick), alone)
				dies(Map(counting(3), workers, f), failed)
			}
			if what != "panic: ouch" { // the caller may end its own goroutine, in which the loop runs
				return
			}
			dies(source, "[300 error dataloader: epoch 3: panic: ouch]")
			dies(atOnce, "[error dataloader: epoch 3: panic: ouch]")
			dies(counting(3).Filter(func(i int) bool { f(t.Context(), i); return true }), "[300 error Stream.Filter: panic: ouch 302]")
			dies(Indices(OrderFunc(2, func(int) []int { panic("ouch") })), "[error dataloader: Indices: epoch 3: panic: ouch]")
			each := func(_ int, samples []int) (int, error) { return f(t.Context(), samples[0]) }
			dies(Batch(counting(3), 1, each), "[300 error Batch: panic: ouch 302]")
			dies(Map(counting(3), 0, f), failed)
		})
	}
	bad := FromSeq(func(context.Context, int) iter.Seq2[int, error] { panic(&SampleError{Err: errBad}) })
	err := ending(bad.Epoch(t.Context(), 0)) // which ends the loop, and so is no *SampleError
	equal(t, "whether it is a *SampleError", isSampleError(err), false)
	equal(t, "whether it is a *PanicError", errors.As(err, new(*PanicError)), true)
}

// TestPanicsOfTheLoop: a panic in the loop body is the caller's. So is the
// panic of a source that is being left, in its cleanup or because it goes on;
// behind a goroutine, as in a Mix, nobody is left to hear of it.
func TestPanicsOfTheLoop(t *testing.T) {
	eachStage(t, counting(3), 5, func(t *testing.T, s ints) {
		saysAll(t, panicOf(func() {
			for range s.Epoch(t.Context(), 0) {
				panic("in the body")
			}
		}), "in the body")
	})
	for says, seq := range map[string]iter.Seq2[int, error]{
		"on leaving": func(yield func(int, error) bool) {
			defer panic("on leaving")
			yield(1, nil)
		},
		"continued iteration": func(yield func(int, error) bool) {
			yield(1, nil)
			yield(2, nil)
		},
	} {
		runRowInBubble(t, says, func(t *testing.T) {
			s, other := FromSeq(func(context.Context, int) iter.Seq2[int, error] { return seq }), counting(9).Prefetch(2)
			leave := func(s ints) { readFirst(s.Epoch(t.Context(), 0)) }
			saysAll(t, panicOf(func() { leave(s) }), says)
			saysAll(t, panicOf(func() { leave(Map(s, 0, quick)) }), says)
			leave(Mix(MixOptions{}, s, other, s, other))
			for workers := 1; workers < 4; workers++ {
				leave(Map(s, workers, quick))
				leave(s.Prefetch(workers))
			}
		})
	}
}

// TestDeafSources: when the loop is left or its context ends, a source that
// does not look at its context is asked for one more item at most, and the loop
// waits for it. The context of a source of a Mix ends when the loop is left.
func TestDeafSources(t *testing.T) {
	var reading atomic.Int64
	deaf := NewStream(func(_ context.Context, from Cursor) iter.Seq2[Item[int], error] {
		return func(yield func(Item[int], error) bool) {
			reading.Add(1)
			defer reading.Add(-1)
			for pos := from.Pos + 1; yield(Item[int]{Value: pos, Next: Cursor{from.Epoch, pos, "mine"}}, nil); pos++ {
				time.Sleep(time.Second)
			}
		}
	})
	waiting := (&feed{n: 1, before: func(ctx context.Context, _ int) { <-ctx.Done() }}).stream()
	for name, s := range map[string]ints{
		"Map":            Map(deaf, 0, quick),
		"Map, 1 worker":  Map(deaf, 1, quick),
		"Map, 2 workers": Map(deaf, 2, quick),
		"Prefetch":       deaf.Prefetch(100),
		"Mix":            Mix(MixOptions{}, deaf, waiting),
	} {
		runRowInBubble(t, name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			start, got := time.Now(), []string{}
			readFirst(s.Epoch(ctx, 0))
			equal(t, "readers that are left", reading.Load(), 0)
			for i, err := range s.Epoch(ctx, 0) {
				got = append(got, outcomes(one(i, err))...)
				cancel(errBad)
			}
			equal(t, "outcomes", got, []string{"1", "error bad sample"})
			failIf(t, time.Since(start) > 2*time.Second, "it took %v", time.Since(start))
		})
	}
}

// ## dataloader.go: where the time goes

// TestProgress: what is shown of a sequence, on a terminal and elsewhere, is
// what was worked out by hand. Items and errors pass. Item 1 fails. On a
// terminal each line covers the one before, in less than 80 columns.
func TestProgress(t *testing.T) {
	const s, hour = time.Second, time.Hour
	bar := func(done int) string { return "[" + strings.Repeat("#", done) + strings.Repeat(".", 12-done) + "]" }
	for _, c := range []struct {
		name            string
		terminal        bool
		total, n, leave int // leave: a break with this many items; 0: none
		wait, body, end time.Duration
		lines           int
		want            string
	}{
		{"lines", false, 25, 25, 0, s, 0, 0, 3,
			"10/25  40% 1/s, 10s, 15s left, waited 100%\n20/25  80% 1/s, 20s, 5s left, waited 100%\n25/25 100% 1/s, 25s, waited 100%"},
		{"more than promised", false, 2, 3, 0, s, 0, 0, 1, "3/2 100% 1/s, 3s, waited 100%"},
		{"nothing", false, 2, 0, 0, s, 0, 0, 1, "0/2   0% 0/s, 0s, waited 0%"},
		{"slow end", false, 0, 6, 0, 0, 2 * s, 18 * s, 2, "5 0.5/s, 10s, waited 0%\n6 0.2/s, 30s, waited 60%"},
		{"fast", false, 0, 1000, 0, 0, s / 1e6, 0, 1, "1000 1000000/s, 0s, waited 0%"},
		{"long", false, math.MaxInt32, 2, 1, 2 * hour, 0, 0, 1,
			"1/2147483647   0% 0.000139/s, 2h0m0s, 1281023h53m38.4s left, waited 100%"},
		{"a bar", true, 2, 2, 0, s / 4, 3 * s / 4, 0, 3, "1/2  50% " + bar(6) + " 1/s, 1s, 1s left, waited 25%\n" +
			"2/2 100% " + bar(12) + " 1/s, 2s, waited 25%\n2/2 100% " + bar(12) + " 1/s, 2s, waited 25%"},
		{"a break", true, 100, 100, 2, s / 4, s / 4, 0, 2, "1/100   1% " + bar(0) + " 2/s, 500ms, 49.5s left, waited 50%\n" +
			"2/100   2% " + bar(0) + " 2.67/s, 800ms, 36.8s left, waited 67%"},
		{"ten times a second", true, 0, 10000, 0, s / 1000, 0, 0, 101, ""},
		{"less than 80 columns", true, 99999, 20, 0, hour / 6, 5 * hour / 6, 0, 21, ""},
	} {
		runRowInBubble(t, c.name, func(t *testing.T) {
			source := &feed{n: c.n, bad: []int{1}, before: func(_ context.Context, i int) {
				time.Sleep(map[bool]time.Duration{true: c.wait, false: c.end}[i < c.n])
			}}
			var out strings.Builder
			k := 0
			for i, err := range progress(&out, c.total, c.terminal, source.stream().Epoch(t.Context(), 0)) {
				failed := isSampleError(err)
				failIf(t, failed != (k == 1) || err == nil && i != k, "item %d: %d, %v", k, i, err)
				if k++; k == c.leave {
					break
				}
				time.Sleep(c.body)
			}
			time.Sleep(time.Hour)
			got, ended := strings.CutSuffix(out.String(), "\n")
			equal(t, "a newline at the end", ended, true)
			lines, last := strings.Split(got, "\n"), 0
			if c.terminal {
				lines = strings.Split(got, "\r")[1:]
				for i, line := range lines {
					lines[i] = strings.TrimRight(line, " ")
					failIf(t, len(line) < last || len(line) > 79, "%q has %d columns, after %d", line, len(line), last)
					last = len(lines[i])
				}
			}
			equal(t, "lines", len(lines), c.lines)
			if c.want != "" {
				equal(t, "text", strings.Join(lines, "\n"), c.want)
			}
		})
	}
	file, null := must(os.Create(filepath.Join(t.TempDir(), "log"))), must(os.Open(os.DevNull))
	defer file.Close()
	defer null.Close()
	// A file is no terminal. A device that is written to character by character
	// counts as one.
	failIf(t, isTerminal(io.Discard) || isTerminal(file) || runtime.GOOS == "linux" && !isTerminal(null),
		"a terminal is not known from other files")
}

// TestProfiles looks into profiles as the tools show them: who a goroutine is,
// and what a batch was made of.
func TestProfiles(t *testing.T) {
	var out bytes.Buffer
	running := trace.Start(&out) == nil // otherwise somebody traces this test already
	whoami := func(ctx context.Context) string {
		label, _ := pprof.Label(ctx, "dataloader")
		var all strings.Builder
		pprof.Lookup("goroutine").WriteTo(&all, 1)
		saysAll(t, errors.New(all.String()), fmt.Sprintf(`"dataloader":%q`, label))
		return label
	}
	get := func(ctx context.Context, i int) (int, error) {
		equal(t, "who loads", whoami(ctx), fmt.Sprint("worker ", Worker(ctx)))
		return i, nil
	}
	source := &feed{n: 1, before: func(ctx context.Context, _ int) { equal(t, "who reads", whoami(ctx), "reader") }}
	collect(t, newLoader(t, Func(4, get), Options{Workers: 2}).Epoch(t.Context(), 0))
	collect(t, Map(source.stream(), 1, get).Epoch(t.Context(), 0))
	collect(t, source.stream().Prefetch(2).Epoch(t.Context(), 0))
	if running {
		trace.Stop()
		saysAll(t, errors.New(out.String()), "batch", "epoch 0, batch 1", "fetch", "collate")
	}
}

// ## How streams mix, and their cursors

// TestShuffleDelays: item i leaves once item i+d(i) has been read, and what
// leaves at the same time does so in order. The model, which sorts all items at
// once, has the same order for all small sizes and lengths, and one larger.
func TestShuffleDelays(t *testing.T) {
	for k := range 7 * 30 {
		size, n, epoch, seed := 1+k/30, k%30, k%3, uint64(k%4)
		if k == 209 {
			size, n = 100, 300
		}
		due := func(i int) int {
			h := hash(seed, uint64(epoch))
			a, b := below(uint64(3*size), h, 2*uint64(i)), below(uint64(3*size), h, 2*uint64(i)+1)
			return i + min(a, b)*min(size-1, 1) // 0 if size is 1
		}
		got, want, source := []int{}, upTo(n), &feed{n: n, bad: []int{5}}
		slices.SortStableFunc(want, func(i, j int) int { return due(i) - due(j) })
		for i, err := range source.stream().Shuffle(size, seed).Epoch(t.Context(), epoch) {
			if i -= 100 * epoch; err != nil {
				i = 5
			}
			got = append(got, i)
			equal(t, "items read", int(source.read.Load()), min(n, due(i)+1))
		}
		equal(t, fmt.Sprintf("%d items, size %d", n, size), got, want)
	}
}

// TestCalendar compares a calendar with a map from due to a list, while the
// number of items that wait grows and shrinks. A calendar is not larger than
// the most items that have waited, its lists are short, an entry is reused, and
// does not keep an item that has left.
func TestCalendar(t *testing.T) {
	type item = Pair[int, error]
	var c calendar[int]
	model, rng := map[int][]item{}, rand.New(rand.NewPCG(1, 1))
	waiting, most, longest := 0, 0, 0
	put := func(due, value int) {
		x := item{value, fmt.Errorf("item %d", value)}
		c.put(due, x)
		model[due] = append(model[due], x)
		waiting++
		most = max(most, waiting)
	}
	takeAll := func(due int) {
		for _, want := range model[due] {
			got, ok := c.take(due)
			failIf(t, !ok || got != want, "due %d: got %v, %t, want %v", due, got, ok, want)
			waiting--
		}
		delete(model, due)
		_, ok := c.take(due)
		failIf(t, ok, "due %d: an item is left over", due)
	}
	for now := range 20_000 {
		put(now+rng.IntN(10+now%9000), now)
		takeAll(now)
	}
	for _, e := range c.days {
		length := 0
		for ; e != nil; e = e.next {
			length++
		}
		longest = max(longest, length)
	}
	failIf(t, longest < 2 || longest > 12, "the longest list has %d entries", longest)
	equal(t, "days", len(c.days), 1<<bits.Len(uint(most-1)))
	equal(t, "dues", slices.Compact(c.dues()), slices.Sorted(maps.Keys(model)))
	for due := range maps.Clone(model) { // in any order
		takeAll(due)
	}
	free := 0
	for e := c.free; e != nil; e = e.next {
		free++
		equal(t, "an entry that is free", *e, entry[int]{next: e.next})
	}
	equal(t, "entries that are free at the end", free, len(c.days))
	allocs := testing.AllocsPerRun(100, func() {
		for due := range free {
			c.put(due, item{})
		}
		for due := range free {
			c.take(due)
		}
	})
	equal(t, "allocations, if entries are free", allocs, 0)
}

// TestMixStart: the sources of a Mix are opened at the same time, at the start
// and at a resume, 64 of them at most, and none that has ended. The loop waits
// only for the source that it draws. Its goroutine may be locked to its thread,
// as for CUDA.
func TestMixStart(t *testing.T) {
	const ms = time.Millisecond
	slow := func(open time.Duration) ints {
		return (&feed{n: 9, before: func(_ context.Context, i int) { time.Sleep(open * time.Duration(max(0, 1-i))) }}).stream()
	}
	took := func(t *testing.T, s ints, at *Cursor, items int) (took time.Duration) { // until the last of so many items comes
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		start := time.Now()
		for _, err := range s.Run(t.Context(), at) {
			took = time.Since(start)
			if items--; must(items, err) == 0 {
				break
			}
		}
		return took
	}
	for sources, resumed := range map[int]time.Duration{8: 50 * ms, 66: 100 * ms} { // until each other source has yielded an item
		inBubble(t, func(t *testing.T) {
			var at Cursor
			s := Mix(MixOptions{}, slices.Repeat([]ints{slow(50 * ms)}, sources)...)
			equal(t, "the first item", took(t, s, &at, 1), 50*ms)
			equal(t, fmt.Sprint("the others of ", sources), took(t, s, &at, sources-1), resumed)
		})
	}
	inBubble(t, func(t *testing.T) {
		mixed := func(open time.Duration) ints { return Mix(MixOptions{Stop: StopAtLast}, slow(0).Repeat(2), slow(open)) }
		equal(t, "an item that is there", took(t, mixed(time.Hour), new(Cursor), 1), 0)
		at, start := cursors(t, mixed(0))[22], time.Now()
		equal(t, "items, when source 1 has ended", len(collect(t, mixed(time.Hour).Run(t.Context(), &at))), 5)
		equal(t, "the time for them", time.Since(start), 0)
	})
}

// TestMixCost: an item of 1,000 sources takes as much memory as one of two, and
// a cursor that is kept holds a few moves.
func TestMixCost(t *testing.T) {
	var last Cursor
	allocates(t, "30,000 items of 1,000 sources", 30_000*400+4<<20, func() {
		for item := range Mix(MixOptions{}, slices.Repeat([]ints{Indices(Sequential(30))}, 1000)...).Items(t.Context(), Cursor{}) {
			last = item.Next
		}
	})
	moves := 0
	for m := last.State.(*freshState).moved; m != nil; m = m.before {
		moves++
	}
	equal(t, "at most a move for each source", moves <= 1000, true)
}

// TestMixIsEven: draws by weight keep to the shares: in any 100,000 of them
// from the start, the count of each source differs from its share by less than
// 6. The worst that a search has found is 5.69. A source that has ended is
// never drawn again, however different the weights are.
func TestMixIsEven(t *testing.T) {
	// distance returns how far a count gets from its share.
	distance := func(weights []float64, ended []bool, seed uint64) (most float64) {
		counts, total := make([]int, len(weights)), 0.
		for i, w := range weights {
			if !ended[i] {
				total += w
			}
		}
		sources := make([]ints, len(weights))
		m := &mixer[int]{opts: &MixOptions{Weights: weights}, srcs: sources, seed: seed, ended: ended}
		m.noteEnds()
		for m.draws < 100_000 {
			counts[m.chooseSource()]++
			for i, n := range counts {
				if !ended[i] {
					most = max(most, math.Abs(float64(n)-float64(m.draws)*weights[i]/total))
				}
			}
		}
		return most
	}
	for round := range 20 {
		weights, ended := []float64{.02, 1, 3.3, .7}, make([]bool, 4)
		ended[0] = round%2 == 1
		for i := range weights {
			weights[i] += float64(round) / 9
		}
		far := distance(weights, ended, hash(uint64(round)))
		failIf(t, far >= 6, "by %v a source is %.2f off its share", weights, far)
	}
	// Every number of draws up to 4,000 was searched, and sums of Fibonacci
	// numbers, which are the worst. The worst shares end at points of the
	// sequence, here after 87,841 draws.
	far := distance([]float64{.2763905365, .5527907177, .1708187458}, make([]bool, 3), 0)
	failIf(t, far < 5.6 || far >= 6, "the worst source is %.2f off its share", far)
	const most, least = 0x1p1023, math.SmallestNonzeroFloat64
	three, want := slices.Repeat([]ints{Indices(Sequential(4))}, 3), slices.Repeat([]int{0, 1, 2, 3}, 3)
	by := func(weights ...float64) []int {
		return collect(t, Mix(MixOptions{Weights: weights}, three...).Take(99).Epoch(t.Context(), 0))
	}
	equal(t, "by large weights", by(most, most, most), by(1, 1, 1))
	equal(t, "by small weights", by(least, least, least), by(1, 1, 1))
	for _, weights := range [][]float64{{1e-300, 1e-300, 1e300}, {1e300, 1e-300, 1e-300}, {least, most, most}, {most, least, 1}} {
		equal(t, fmt.Sprint("each item once, by ", weights), sorted(by(weights...)), sorted(want))
	}
}

// TestNestedCursors: a stage adds a constant to the size of a cursor, however
// many are nested.
func TestNestedCursors(t *testing.T) {
	s, pairs := counting(400), counting(400)
	for k := range 10 {
		if s = s.Shuffle(k+3, uint64(k)); k < 6 {
			pairs = Unbatch(Batch(pairs, 4, List[int])).Shuffle(k+3, uint64(k))
		}
	}
	own := func(x string) Cursor { return Cursor{State: map[string]any{"by": 0, "again": 1, "x": x}} } // which no stage has made
	equal(t, "whether digests tell states of the user's own apart", fingerprintOf(own("a")) != fingerprintOf(own("b")), true)
	for most, s := range map[int]ints{3700: s, 2300: pairs} {
		n := len(cursors(t, s.Take(150))[150].String())
		failIf(t, n > most, "a cursor has %d bytes, want at most %d", n, most)
	}
}

// TestSavedCursors: cursors of each stage and source, and of nested ones,
// resume with exactly the items that were left when they were saved. They are
// frozen: people have runs of ten days. -update does not write the file.
// Whoever changes an order, or what a cursor means, changes the name in its
// state, so that a saved cursor is refused, and adds new cursors here.
func TestSavedCursors(t *testing.T) {
	var saved []struct {
		Name   string
		Cursor Cursor
		Rest   []string
	}
	must(0, json.Unmarshal(must(os.ReadFile("testdata/cursors.json")), &saved))
	streams, seen := savedStreams(t), map[string]bool{}
	for _, c := range saved {
		seen[c.Name] = true
		runRow(t, c.Name, func(t *testing.T) {
			at := c.Cursor
			equal(t, "from "+at.String(), streams[c.Name](&at), c.Rest)
		})
	}
	for name := range streams {
		equal(t, "a cursor of "+name, seen[name], true)
	}
}

// savedStreams are the streams and loaders of testdata/cursors.json. Never
// change one: its cursors would no longer fit. (Unbatch behind StreamOf refuses
// its first four lines, because its name says now what a step is.) A line of a
// new stream s has a cursor of epoch 2, since in epoch 0 a source at its start
// is left out. Take an early and a late one of
//
//	for item := range s.Items(t.Context(), Cursor{Epoch: 2}) {
//		fmt.Printf(`{"name":%q,"cursor":%s,`, name, must(json.Marshal(item.Next)))
//		fmt.Printf(`"rest":%s},`+"\n", must(json.Marshal(shown(s.Run)(&item.Next))))
//	}
func savedStreams(t *testing.T) map[string]func(*Cursor) []string {
	ten, other, sampler := counting(10, 3), Indices(Sequential(7)), Random(12, 4)
	batched := Batch(counting(11, 9), 4, List[int])
	weighted := func(stop Stop, all ...ints) ints {
		return Mix(MixOptions{Weights: []float64{1, 3}, Seed: 8, Stop: stop}, all...)
	}
	names, shards := tenShards()
	nested := Map(Zip(Chain(other, ten).Repeat(2).Take(30), ten.Cycle()), 2, add)
	tar := func(rank Rank) Stream[Record] {
		return must(Tar(names, TarOptions{Shuffle: true, Seed: 1, Rank: rank, Open: inMemory(shards)}))
	}
	tars := Mix(MixOptions{Stop: StopAtLast}, tar(Rank{0, 2}), tar(Rank{1, 2}))
	loader := newLoader(t, numbers(23), Options{BatchSize: 2, Shuffle: true, Seed: 7, Rank: Rank{1, 2}})
	unordered := newLoader(t, numbers(23), Options{BatchSize: 2, Shuffle: true, Seed: 7, Unordered: true})
	streamed := StreamOf(newLoader(t, numbers(23), Options{BatchSize: 3, Sampler: sampler}))
	ofRank := StreamOf(newLoader(t, numbers(23), Options{BatchSize: 2, Shuffle: true, Seed: 1<<63 + 1, Rank: Rank{1, 2}}))
	ofNested := counting(30).Shard(Rank{0, 1}, UnevenTail).Shard(Rank{1, 2}, UnevenTail)
	return map[string]func(*Cursor) []string{
		"FromSeq":                        shown(ten.Run),
		"Indices":                        shown(Indices(sampler).Run),
		"Filter":                         shown(ten.Filter(func(i int) bool { return i%4 > 0 }).Run),
		"OnError":                        shown(ten.OnError(dropBad).Run),
		"Map":                            shown(Map(ten, 2, quick).Run),
		"Prefetch":                       shown(ten.Prefetch(3).Run),
		"Batch":                          shown(batched.Run),
		"Take":                           shown(ten.Take(8).Run),
		"Repeat":                         shown(ten.Repeat(2).Run),
		"Chain":                          shown(Chain(other, ten).Run),
		"Zip":                            shown(Zip(ten, other).Run),
		"Unbatch":                        shown(Unbatch(batched).Run),
		"Shuffle":                        shown(ten.Shuffle(4, 1).Run),
		"Mix in turn":                    shown(Mix(MixOptions{Stop: StopAtLast}, other, ten).Run),
		"Mix in turn, cycle":             shown(Mix(MixOptions{Stop: CycleUntilLast}, other.Take(2), ten, other).Run),
		"Mix by weight":                  shown(weighted(StopAtLast, ten, other).Run),
		"Mix by weight, cycle":           shown(weighted(CycleUntilLast, ten, other).Run),
		"Mix in turn, first":             shown(Mix(MixOptions{Stop: StopAtFirst}, ten, other).Run),
		"Mix by weight, first":           shown(weighted(StopAtFirst, ten, other).Run),
		"Mix in turn, forever":           shown(Mix(MixOptions{Stop: CycleForever}, other, ten).Take(25).Run),
		"Shard":                          shown(ten.Shard(Rank{1, 3}, PadTail).Run),
		"Tar":                            shown(briefly(tar(Rank{})).Run),
		"Tar, a shard":                   shown(briefly(tar(Rank{1, 2})).Run),
		"loader":                         shown(loader.Run),
		"loader, unordered":              shown(unordered.Run),
		"loader as a stream":             shown(streamed.Run),
		"of a rank, filtered":            shown(ofRank.Filter(func(b []int) bool { return b[0]%4 > 0 }).Run),
		"of nested ranks, filtered":      shown(ofNested.Filter(func(i int) bool { return i%4 > 0 }).Run),
		"of a rank, in turn":             shown(Mix(MixOptions{}, Unbatch(ofRank), other).Take(9).Run),
		"nested, no Shuffle":             shown(Batch(nested, 3, List[int]).Prefetch(2).Run),
		"Unbatch of a loader":            shown(Unbatch(streamed).Run),
		"Unbatch of Unbatch":             shown(Unbatch(Batch(Unbatch(batched), 3, List[int])).Run),
		"Unbatch of Shuffle":             shown(Unbatch(Batch(ten.Shuffle(4, 1), 4, List[int])).Run),
		"Unbatch of Mix by weight":       shown(Unbatch(Batch(weighted(StopAtLast, ten, other), 4, List[int])).Run),
		"Unbatch of nested Shuffles":     shown(Unbatch(Batch(ten.Shuffle(3, 1).Shuffle(2, 5), 3, List[int])).Shuffle(2, 3).Run),
		"Shuffle of Chain":               shown(Chain(other, ten).Shuffle(5, 2).Run),
		"Shuffle of Mix":                 shown(Mix(MixOptions{Stop: StopAtLast}, other, ten).Shuffle(5, 2).Run),
		"Mix of Shuffles":                shown(Mix(MixOptions{Stop: StopAtLast}, other.Shuffle(3, 1), ten.Shuffle(4, 1)).Run),
		"Shard of Shuffle":               shown(ten.Shuffle(4, 1).Shard(Rank{1, 2}, UnevenTail).Run),
		"Tar, shuffled, batched, ahead":  shown(Batch(briefly(tar(Rank{}).Shuffle(6, 2)), 2, List[string]).Prefetch(2).Run),
		"Tar in turn, batched, unpacked": shown(Unbatch(Batch(briefly(tars), 3, List[string])).Run),
	}
}

// # The tests of tar shards

// ## The stream of records

// TestTarGolden shows which entries make which records, and that no fault of a
// shard is silent: in testdata/shards.txt. Headers of other formats change
// nothing but offsets.
func TestTarGolden(t *testing.T) {
	var text strings.Builder
	whole := true // unless -run leaves out rows
	old := string(must(os.ReadFile("testdata/shards.txt")))
	for line := range strings.Lines(old) {
		if strings.HasPrefix(line, "\t") {
			continue // an outcome, which is written again
		}
		if text.WriteString(line); line == "\n" || line[0] == '#' {
			continue
		}
		before := text.Len()
		runRow(t, line, func(t *testing.T) {
			data, opts := makeShard(line)
			streamed, byIndex := checkShard(t, opts, data)
			outcomes := slices.Clone(streamed)
			if !slices.Equal(streamed, byIndex) {
				outcomes = slices.Concat(streamed, []string{"and OpenTar:"}, byIndex)
			}
			block := strings.ToValidUTF8("\t"+strings.Join(append(outcomes, "the end"), "\n\t")+"\n", "?")
			block = strings.ReplaceAll(block, tar.ErrHeader.Error(), "tar.ErrHeader")
			text.WriteString(block)
			failIf(t, !*update && !strings.Contains(old, line+block), "this shard yields\n%s", block)
			if strings.Contains(line, "|") {
				return
			}
			for _, other := range otherHeaders(data) {
				got := append(readAll(t, tarOf(opts, other)), indexed(t, onDisk(t, "x.tar", other))...)
				want := slices.Concat(streamed, byIndex)
				place := regexp.MustCompile(`shard "[^"]*"|offset \d+`)
				all := func(outcomes []string) string { return place.ReplaceAllString(strings.Join(outcomes, "\n"), "") }
				equal(t, "other headers", all(got), all(want))
			}
		})
		whole = whole && text.Len() > before
	}
	if whole {
		goldenFile(t, "shards.txt", []byte(text.String()))
	}
}

// TestTarCompressed shows what is read of a damaged shard that is compressed.
func TestTarCompressed(t *testing.T) {
	data, _ := makeShard("sound")
	packed, whole := gzipped(data), strings.Join(indexed(t, onDisk(t, "x.tar", data)), "; ")
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"two members", append(gzipped(data[:3000]), gzipped(data[3000:])...), whole},
		{"half", packed[:len(packed)/2], `error unexpected EOF … record "a"`},
		{"no length", packed[:len(packed)-4], whole + "; error unexpected EOF"},
		{"checksum", withBytes(packed, len(packed)-6, string(packed[len(packed)-6]^1)), whole + "; error " + gzip.ErrChecksum.Error()},
		{"text behind", slices.Concat(packed, []byte("and something more")), whole + "; error what follows the compressed"},
		{"zeros behind", slices.Concat(packed, make([]byte, 512)),
			whole + "; error what follows the compressed … " + gzip.ErrHeader.Error()},
		{"magic alone", []byte("\x1f\x8b"), "error unexpected EOF"},
	} {
		runRow(t, c.name, func(t *testing.T) {
			got, _ := checkShard(t, TarOptions{}, c.data)
			same(t, "compressed", got, c.want)
		})
	}
}

// TestTarFields shows that only the wanted fields are yielded, and that others
// are skipped without being read. An empty file is a field and a missing file
// is not.
func TestTarFields(t *testing.T) {
	data := tarEntries("a.png=1", "a.cls=2", "b.png=3", "c.cls=4", "c.big="+strings.Repeat("x", 1000), "c.\xe9=5")
	for _, c := range []struct {
		opts TarOptions
		want string
	}{
		{TarOptions{Fields: []string{"png"}}, "a{png:1}; b{png:3}; c{}"},
		{TarOptions{Fields: []string{"CLS", "png"}, MaxRecord: 520}, "a{png:1 cls:2}; b{png:3}; c{cls:4}"}, // big is not read
		{TarOptions{Fields: []string{}}, "a{}; b{}; c{}"}, {TarOptions{Fields: []string{"\xe9"}}, "a{}; b{}; c{\xe9:5}"},
	} {
		runRow(t, fmt.Sprint(c.opts.Fields), func(t *testing.T) {
			same(t, "records", checkStream(t, tarOf(c.opts, data), 0), c.want)
		})
	}
	stream := tarFrom(opening(bytes.NewReader(tarEntries("a.txt="))), "x")
	if r := collect(t, stream.Epoch(t.Context(), 0))[0]; r.Get("txt") == nil || r.Get("cls") != nil || r.Shard != "x" {
		t.Errorf("txt %v, cls %v, shard %q", r.Get("txt"), r.Get("cls"), r.Shard)
	}
	large := tarEntries("a.big="+strings.Repeat("x", 5<<20), "a.cls=1", "b.big="+strings.Repeat("x", 5<<20), "b.cls=2")
	for _, shard := range [][]byte{large, gzipped(large)} { // only the first can be skipped with a seek
		file := &countingFile{Reader: bytes.NewReader(shard)}
		stream := must(Tar([]string{"x"}, TarOptions{Fields: []string{"cls"}, Open: opening(file)}))
		same(t, "seeking", readAll(t, briefly(stream)), "a{cls:1}; b{cls:2}")
		failIf(t, file.read > 4*tarBuffer, "%d bytes of %d were read", file.read, len(large))
		equal(t, "closed", file.closed, true)
	}
}

// TestTarOptions shows that arguments that make no sense are errors that name
// them.
func TestTarOptions(t *testing.T) {
	fails := func(opts TarOptions, shards ...string) error { return errorOf(Tar(shards, opts)) }
	refused(t, []refusal{
		{fails(TarOptions{}), "Tar: there are no shards"},
		{fails(TarOptions{}, "a", ""), "Tar: shard 1 has an empty name"},
		{fails(TarOptions{Rank: Rank{0, 3}}, "a", "b"),
			"Tar: 2 shards are too few for 3 ranks: leave TarOptions.Rank out and deal records with Stream.Shard"},
		{fails(TarOptions{Rank: Rank{2, 2}}, "a", "b"), "Tar: Rank is {Index: 2, Count: 2}"},
		{fails(TarOptions{MaxRecord: -1}, "a"), "Tar: MaxRecord is -1, must not be negative"},
	})
}

// TestTarShards shows how shards are dealt out to ranks: in the order given or,
// in each epoch, in that of Random with the seed; then every Count-th.
func TestTarShards(t *testing.T) {
	names, shards := tenShards()
	for _, opts := range []TarOptions{{}, {Shuffle: true}, {Shuffle: true, Seed: 1}, {Shuffle: true, Seed: 2}} {
		order := Sequential(10)
		if opts.Shuffle {
			order = Random(10, opts.Seed)
		}
		opts.Open = inMemory(shards)
		for _, opts.Rank = range []Rank{{}, {0, 3}, {1, 3}, {2, 3}, {1, 4}, {2, 4}} {
			runRow(t, fmt.Sprint(order, opts.Rank), func(t *testing.T) {
				stream := briefly(must(Tar(names, opts)))
				for epoch := range 2 {
					var want []string
					for pos := opts.Rank.Index; pos < 10; pos += max(opts.Rank.Count, 1) {
						i := order.Order(epoch)(pos)
						want = append(want, fmt.Sprintf("%da{txt:}", i), fmt.Sprintf("%db{txt:}", i))
					}
					equal(t, fmt.Sprint("epoch ", epoch), collect(t, stream.Epoch(t.Context(), epoch)), want)
				}
			})
		}
	}
	shards["empty"] = tarEntries("d/") // a shard without records
	opts := TarOptions{Shuffle: true, Seed: 1, Rank: Rank{1, 2}, Open: inMemory(shards)}
	checkStream(t, briefly(must(Tar(append(names[:5:5], "empty"), opts))), 5)

	// A cursor fits the same shards in another place. After a last shard that
	// failed comes nothing.
	var moved []string
	for _, name := range names {
		moved = append(moved, "https://host/dir/"+name+"?sig=1")
		shards[moved[len(moved)-1]] = shards[name]
	}
	here, elsewhere := must(Tar(names, opts)), briefly(must(Tar(moved, opts)))
	at := cursors(t, here)[3]
	equal(t, "elsewhere", resume(t, elsewhere, at), resume(t, briefly(here), at))
	missing := tarFrom(inMemory(nil), names...)
	equal(t, "after the last shard", resume(t, missing, cursors(t, missing)[10]), []string{})

	// A shard that was written again meanwhile may have something else where
	// the cursor is, or nothing.
	shards["ab"], shards["c"] = tarEntries("1.txt=", "2.txt="), tarEntries("3.txt=")
	two := briefly(tarFrom(inMemory(shards), "c", "ab"))
	at = cursors(t, two)[2]
	for _, again := range [][]byte{tarEntries("1.txt="+strings.Repeat("x", 999), "2.txt="), tarEntries("1.txt=")[:512]} {
		shards["ab"] = again
		same(t, "written again", resume(t, two, at), "error or the cursor was saved with another version")
	}
}

// TestTarOpeners shows that whatever an Opener and its reader do costs one
// shard, and that readers are closed.
func TestTarOpeners(t *testing.T) {
	data := tarEntries("a.txt=1", "b.txt=2", "c.txt=3")
	large := tarEntries("a.txt=" + strings.Repeat("x", 2*tarBuffer))
	reads := func(data []byte, fail func() error) Opener { return opening(breaksAfter(data, fail)) }
	opens := func(do func() error) Opener {
		return func(context.Context, string, int64) (io.ReadCloser, error) { return nil, do() }
	}
	fails := func() error { return errBad }
	panics := func() error { panic("broken") }
	stands := func() error { return nil } // neither bytes nor an error, between small reads and large ones
	calls := 0
	deniesOnce := func() error {
		calls++
		return []error{errors.New("denied"), io.EOF}[calls-1]
	}
	stood := "error " + io.ErrNoProgress.Error()
	for _, c := range []struct {
		name string
		open Opener
		want string
	}{
		{"fails in c", reads(data[:2048+600], fails), `a{txt:1}; b{txt:2}; error entry "c.txt", offset 2048 … bad sample … record "c"`},
		{"denies once", reads(nil, deniesOnce), "error denied … offset 0"},
		{"fails in b", reads(otherHeaders(data)[0][:4096+700], fails), `a{txt:1}; error entry "b.txt", offset 4096 … bad sample`},
		{"panics in c", reads(data[:2048+600], panics), `a{txt:1}; b{txt:2}; error entry "c.txt" … panic: broken`},
		{"panics", reads(nil, panics), "error panic: broken … offset 0"},
		{"Opener panics", opens(panics), "error panic: broken"},
		{"no reader", opens(stands), "error the Opener returned neither a reader nor an error"},
		{"EOF", opens(func() error { return io.EOF }), "error EOF"},
		{"stands", reads(nil, stands), stood},
		{"stands after 100", reads(large[:100], stands), stood},
		{"stands after 1000", reads(large[:1000], stands), stood},
		{"stands before the end", reads(large[:len(large)-100], stands), stood},
	} {
		runRow(t, c.name, func(t *testing.T) {
			got := tarOutcomes(t, func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
				if name == "x" {
					return c.open(ctx, name, offset)
				}
				return io.NopCloser(iotest.OneByteReader(bytes.NewReader(data))), nil
			}, "x", "y")
			same(t, "records", got, c.want+` … shard "x"; a{txt:1}; b{txt:2}; c{txt:3}`)
		})
	}
	for _, shard := range [][]byte{data, nil} { // closed after a break, and when the archive cannot be read
		file := &countingFile{Reader: bytes.NewReader(shard)}
		readFirst(tarFrom(opening(file), "x").Epoch(t.Context(), 0))
		equal(t, "closed", file.closed, true)
	}
}

// TestTarFiles shows how shards in files are opened: a missing one is an error
// of its own, which names Expand or filepath.Glob if it looks like a pattern,
// and a resume seeks. No entry is written to where its name says.
func TestTarFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "in")
	in := func(name string) string { return filepath.Join(dir, name) }
	name, pattern := in("x.tar"), in("{0..3}.tar")
	shard := tarEntries("../../evil.txt=1", "/etc/evil.txt=2", "../evil.txt@/etc/passwd", "d/../../evil.cls=3")
	must(0, os.CopyFS(dir, fstest.MapFS{"x.tar": {Data: shard}}))
	const records = "../../evil{txt:1}; /etc/evil{txt:2}; d/../../evil{cls:3}"
	all := []string{in("missing.tar"), dir, pattern, in("x*"), in("[x]"), in("?"), name}
	got := checkStream(t, briefly(must(Tar(all, TarOptions{}))), 0)
	because(t, fs.ErrNotExist, failure(t, must(Tar(all, TarOptions{}))))
	same(t, "streamed", got, fmt.Sprintf("error shard %q; error shard %q, entry \"\", offset 0: ", all[0], dir)+
		strings.Repeat("; error Expand lists its names, or filepath.Glob", 4)+"; "+records)
	same(t, "indexed", indexed(t, name), records)
	found := slices.Concat(must(filepath.Glob(filepath.Dir(dir)+"/*")), must(filepath.Glob(dir+"/*")))
	equal(t, "files", found, []string{dir, name})

	_, err := OpenTar(pattern)
	saysAll(t, err, "Expand lists its names")
	equal(t, "a shard that was opened", tarOutcomes(t, opening(strings.NewReader("")), "{a}"),
		[]string{`error shard "{a}", entry "", offset 0: it has only 0 bytes, so it is no tar archive, or it has been truncated: ""; ` +
			`the shard is not read further`})
	same(t, "a query", tarOutcomes(t, inMemory(nil), "https://x/?y"), `error shard "https://x/": `+fs.ErrNotExist.Error())
	if e := (*TarError)(nil); !errors.As(err, &e) || e.Offset != -1 || strings.Contains(got[0]+got[2]+err.Error(), "offset") {
		t.Errorf("%#v: %v, %q", e, err, got)
	}
}

// TestTarPipe reads a shard from a named pipe, where the system can make one;
// Windows cannot. The pipe falls silent: the end of the context ends the loop.
// A pipe cannot be opened in the middle; it is closed then, so that its writer
// finds no reader.
func TestTarPipe(t *testing.T) {
	mkfifo, err := exec.LookPath("mkfifo")
	if err != nil {
		t.Skip("this system has no mkfifo, so there is no named pipe to read from")
	}
	name := filepath.Join(t.TempDir(), "pipe.tar")
	must(0, exec.Command(mkfifo, name).Run())
	writer := make(chan *os.File, 1)
	go func() { writer <- must(os.OpenFile(name, os.O_WRONLY, 0)) }()
	equal(t, "whether it can be read from the middle", errorOf(OpenShard(t.Context(), name, 512)) == nil, false)
	w := <-writer
	defer w.Close()
	equal(t, "whether the pipe is still open", errorOf(w.WriteString("x")) == nil, false)
	pipe := must(os.OpenFile(name, os.O_RDWR, 0)) // also for reading, so that the open does not wait
	defer pipe.Close()
	must(pipe.Write(tarEntries("a.txt=1", "b.txt=2")[:1536]))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var got []string
	for v, err := range briefly(must(Tar([]string{name}, TarOptions{}))).Epoch(ctx, 0) {
		got = append(got, outcomes(one(v, err))...)
		time.AfterFunc(time.Millisecond, func() { cancel(errBad) }) // while the loop waits for the rest of b
	}
	equal(t, "outcomes", got, []string{"a{txt:1}", "error " + errBad.Error()})
}

// TestTarContext shows that a context that ends is noticed in a shard without
// records, and in a shard without an end; and that it does not matter any more
// when the last record has been handed over.
func TestTarContext(t *testing.T) {
	for _, cause := range []error{errBad, io.EOF} {
		for _, block := range [][]byte{tarEntries("README=")[:512], gzipped(bytes.Repeat(tarEntries("README=")[:512], 2048))} {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			blocks := 0
			endless := readerFunc(func(p []byte) (int, error) {
				if blocks++; blocks == 10 {
					cancel(cause)
				}
				return copy(p, block), nil
			})
			stream := tarFrom(opening(endless), "x")
			equal(t, "an endless shard", outcomes(stream.Epoch(ctx, 0)), []string{"error " + cause.Error()})
		}
	}
	data := tarEntries("a.txt=1", "b.txt=2")
	packed := gzipped(data)
	for _, shard := range [][]byte{data, packed, withBytes(packed, len(packed)-6, "xxxx")} { // the last has an error to come
		stream := tarOf(TarOptions{}, shard)
		want := readAll(t, stream)
		inBubble(t, func(t *testing.T) {
			for k := range len(want) + 1 {
				checkStop(t, stream, 0, k, want, true)
			}
		})
	}
}

// TestTarMemory shows that what a stream holds grows neither with the records
// of a shard nor with the shards.
func TestTarMemory(t *testing.T) {
	pair := tarEntries("a.bin="+strings.Repeat("x", 512), "b.bin="+strings.Repeat("y", 512))[:2048]
	held := func(shards, records int) (most uint64) {
		open := func(context.Context, string, int64) (io.ReadCloser, error) {
			made := readerFunc(func(p []byte) (int, error) { return copy(p, pair), nil }) // as it is asked for
			return io.NopCloser(io.MultiReader(io.LimitReader(made, int64(records)<<10), bytes.NewReader(make([]byte, 1024)))), nil
		}
		k := 0
		for _, err := range tarFrom(open, slices.Repeat([]string{"x"}, shards)...).Epoch(t.Context(), 0) {
			must(0, err)
			if k++; k%(shards*records/2) == 0 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		equal(t, "records", k, shards*records)
		return most
	}
	if few, long, many := held(1, 100), held(1, 20000), held(500, 10); max(long, many) > few+(1<<20) {
		t.Errorf("a shard of 20000 records holds %d bytes, 500 shards of 10 hold %d, one of 100 %d", long, many, few)
	}
}

// ## Archives that others wrote, and odd headers

// compareReaders checks that archive/tar and this package's reader agree on
// every entry of an archive, and that this one reports every error of
// archive/tar. It may report more: archives that are truncated between two
// entries, and data after the end marker. It may report an error one entry
// later, when it reads on.
func compareReaders(t testing.TB, data []byte) {
	t.Helper()
readers:
	for _, buffer := range []int{1 << 10, min(len(data)+16<<10, tarBuffer)} { // in which headers fit, or do not
		ours, theirs := &tarReader{archive: bufio.NewReaderSize(bytes.NewReader(data), buffer)}, tar.NewReader(bytes.NewReader(data))
		var late error // of archive/tar, about the entry before
		for n := 0; ; n++ {
			h, want := theirs.Next()
			if want = cmp.Or(late, want); want == tar.ErrInsecurePath { // as GODEBUG may ask for
				want = nil
			}
			got := ours.readHeaders()
			if got == io.EOF {
				got = ours.drainShard()
			}
			says := func(part string) bool { return got != nil && strings.Contains(got.Error(), part) }
			switch {
			case got == io.EOF && want == io.EOF || got != nil && got != io.EOF && want != nil && want != io.EOF,
				says("end marker") || says("begins with zeros") || says("only 0 bytes") || says("unexpected EOF"),
				says("its type is") || want == nil && says("sparse"):
				continue readers
			}
			failIf(t, got != nil || want != nil, "entry %d: %v, archive/tar has %v", n, got, want)
			late = compareEntries(t, theirs, h, ours)
		}
	}
}

// compareEntries checks that two readers agree on one entry. It returns an
// error of archive/tar about its data.
func compareEntries(t testing.TB, theirs *tar.Reader, h *tar.Header, ours *tarReader) error {
	t.Helper()
	got, want := ours.entry, tarEntry{kind: tar.TypeReg, name: h.Name, size: h.Size}
	if h.Typeflag == tar.TypeLink {
		want.kind, want.target, want.size = tar.TypeLink, h.Linkname, got.size
	} else if strings.ContainsRune("23456gDNV", rune(h.Typeflag)) {
		want = tarEntry{name: got.name, size: got.size}
	}
	got.begin, got.dataBegin = 0, 0
	if got != want {
		t.Fatalf("entry %.200q, want %.200q; archive/tar has %.200q", fmt.Sprint(got), fmt.Sprint(want), fmt.Sprint(*h))
	}
	if want.kind != tar.TypeReg || h.Size > 1<<21 {
		return nil
	}
	data, wantErr := io.ReadAll(theirs)
	gotData, err := ours.readData()
	if wantErr == nil && err != nil || err == nil && !bytes.HasPrefix(data, gotData) || wantErr == nil && len(gotData) != len(data) {
		t.Fatalf("entry %q has %d bytes and %v, archive/tar has %d and %v", got.name, len(gotData), err, len(data), wantErr)
	}
	return wantErr
}

// archives returns all test archives: those of testdata/tar and, where there is
// one, of the Go installation.
var archives = sync.OnceValue(func() map[string][]byte {
	all := map[string][]byte{}
	goroot, _ := exec.Command("go", "env", "GOROOT").Output()
	gos := strings.TrimSpace(string(goroot)) + "/src/archive/tar/testdata"
	for prefix, dir := range map[string]string{"": "testdata/tar", "go-": gos} {
		names, _ := filepath.Glob(filepath.Join(dir, "*.tar*"))
		for _, name := range names {
			data := must(os.ReadFile(name))
			if base, ok := strings.CutSuffix(name, ".base64"); ok {
				name, data = base, []byte(unBase64(string(data)))
			}
			all[prefix+filepath.Base(name)] = data
		}
	}
	return all
})

// unBase64 decodes base64.
func unBase64(text string) string { return string(must(base64.StdEncoding.DecodeString(text))) }

// TestTarArchives reads every archive in every way. All agree, and those of GNU
// tar, in every format, yield what was put in.
func TestTarArchives(t *testing.T) {
	const a, c = "a{cls:1 txt:first\n}; ", "c{cls:3 txt:}"
	b := briefRecord("b", "cls", "2", "txt", strings.Repeat("second\n", 100)) + "; "
	long := "bb-folder-number-0001/bb-folder-number-0002/bb-folder-number-0003/bb-folder-number-0004/" +
		"bb-folder-number-0005/bb-folder-number-0006/bb-folder-number-0007/"
	wanted := map[string]string{}
	for names, want := range map[string]string{
		"v7 oldgnu gnu ustar posix posix-global gzip bzip2 members": a + b + c, "xz zstd": "error compressed with xz or zstd … gzip",
		"dumpdir": "dump/" + a + "dump/" + b + "dump/" + c, "gnu-utf8 posix-utf8": a + "größe/日本{cls:6 txt:größe\n}",
		"gnu-long oldgnu-long ustar-prefix": a + b + long + "long-name{cls:4 txt:long\n}; " + c,
		"posix-long":                        a + b + long + long + "long-name{cls:5 txt:longer\n}; " + c,
		"gnu-sparse posix-sparse-0.0 posix-sparse-0.1 posix-sparse-1.0": `error entry "s.bin" … tar --sparse … record "a" is left out`,
		"gnu-links posix-links": a + `error entry "b.txt" … it is a hard link to "a.txt"` + "; c{cls:3}; d/x{cls:7 txt:x\n}",
	} {
		for _, name := range strings.Fields(names) {
			wanted[name+".tar"] = want
		}
	}
	for name, data := range archives() {
		want, known := wanted[name]
		delete(wanted, name)
		if !known && testing.Short() {
			continue
		}
		runRow(t, name, func(t *testing.T) {
			streamed, byIndex := checkShard(t, TarOptions{MaxRecord: 1 << 24}, data)
			if known {
				same(t, "streamed", streamed, want)
			}
			checkIndexed(t, data, streamed, byIndex)
		})
	}
	equal(t, "archives that are missing", len(wanted), 0)
	unwanted := readAll(t, tarOf(TarOptions{Fields: []string{"txt"}}, archives()["gnu-sparse.tar"]))
	same(t, "a sparse file that Fields leaves out", unwanted, `error entry "s.bin" … tar --sparse`)
}

// A headerCase is the beginning of an archive, up to the data of the first
// file, which is behind it. fast is what parseHeaders makes of it, or empty if
// it is left to archive/tar.
type headerCase struct {
	headers []byte
	fast    string
}

// headerCases are headers as people have them, and odd ones. Behind each is a
// file "a.txt" of 600 bytes.
func headerCases() (cases []headerCase) {
	x, h, name := paxHeader, tarHeader, strings.Repeat("long/", 40)+"b.txt"
	add := func(fast string, headers ...[]byte) {
		headers = append(headers, h("0", "a.txt", strings.Repeat("d", 600)))
		cases = append(cases, headerCase{slices.Concat(headers...), fast})
	}
	text := func(records string) []byte { return h("x", "x", records) }
	mtime, path, long := x("mtime=1700000000.1234567"), x("path=b.txt"), h("L", "././@LongLink", name+"\x00")
	n := strings.Repeat("n", tarBuffer)
	for _, headers := range [][]byte{nil, mtime, slices.Concat(path, mtime), text(""), text("6 a=b\n"), text("07 a=b\n"),
		h("K", "", name), h("L", "", ""), h("L", "", "\x00b"), slices.Concat(long, h("L", "", "")),
		x("atime=1", "ctime=1.", "mtime=1.5", "uid=4000000", "gid=0", "uname=ä", "gname=b", "linkpath=c", "comment= d\n=e",
			"SCHILY.xattr.user.f=g", "LIBARCHIVE.creationtime=1"),
		withHeader(h("K", "", ""), 0, 108, "\x80\xff\xff\xff\xff\xff\xff\xff\x80\x00\x00\x00\x01\x00\x00\x00"),
	} {
		add("a.txt 600", headers)
	}
	file := h("0", "b.txt", "")
	for at, bytes := range map[int]string{100: "0000644x", 108: "x", 116: "8", 124: "\x80", 136: "-1", 156: "5", 329: "x", 337: "x",
		508: "tar\x00"} {
		add("", withHeader(file, 0, at, bytes))
	}
	add("", withBytes(file, 148, "1"))
	add("b.txt 0", file)
	add("ä/b.txt 600", x("path=ä/b.txt"))
	add("\xff.txt 600", x("path=\xff.txt"))
	add("c.txt 600", x("path=b.txt", "mtime=1", "path=c.txt"))
	add("c.txt 600", long, h("L", "", "c.txt"))
	add("d/ 0", x("path=d/"), h("0", "a.txt", ""))
	add(n+" 600", h("L", "", n))
	for _, headers := range [][]byte{long, h("L", "", name), slices.Concat(h("K", "", "k"), long), slices.Concat(path, long),
		slices.Concat(long, path), withHeader(long, 0, 257, "ustar  \x00"), withHeader(long, 0, 257, "\x00")} {
		add(name+" 600", headers)
	}
	// These are left to archive/tar, which reads some of them: PAX records,
	// here without spaces; texts that are none; others.
	for _, records := range strings.Fields("path=b.txt|path= mtime= path=b\x00.txt uname=b\x00 xattr=b\x00 xattr\x00=b " +
		"mtime=-1.5 mtime=.5 mtime=1.x mtime=1.: mtime=1a.5 mtime=1:.5 mtime=x atime=1.2.3 ctime=1e9 mtime=12345678901234567890 " +
		"mtime=36893488147419103233 uid=18446744073709551617 uid=-1 uid=: mtime=: gid=1.5 uid=x|uid=1 size=-1 " +
		"size=0x10 size=100 size=7|size=0 size=9223372036854775808 size=9223372036854775807 =b a " +
		"GNU.sparse.major=1|GNU.sparse.minor=0 GNU.sparse.name=b.txt GNU.sparse.map=0,1|GNU.sparse.size=100 " +
		"GNU.sparse.offset=0|GNU.sparse.numbytes=1") {
		add("", x(strings.Split(records, "|")...))
	}
	for _, records := range []string{"5 a=\n", "4 a=\n", "7 a=b\n", "5 a=b\n", "99 a=b\n", "+6 a=b\n", " 6 a=b\n", "6 a=b\x00",
		"6 a=b ", "6 a=b\n\x00", "6", "2 \n", "3 =\n", "1 \n", "0 a=b\n", "99999999999999999999 a=b\n", "-6 a=b\n", "\n",
		"9 size= 1\n"} {
		add("", text(records))
	}
	for _, headers := range [][]byte{withHeader(long, 0, 108, "\xff"), withHeader(long, 0, 136, "\x80\xff\xff\xff\xff"),
		withHeader(long, 0, 108, "x"), withHeader(long, 0, 124, "\x80"), withBytes(path, 0, "other"),
		h("g", "", "6 a=b\n"), h("X", "", "6 a=b\n"), h("L", "", n+"n"), h("L", "", n+n+n+n+"n"), x("comment=" + n + n + n + n),
		slices.Concat(x("size=100"), mtime), slices.Concat(path, h("g", "", "6 a=b\n")), slices.Concat(path, h("5", "d/", "")),
		slices.Concat(x("linkpath=c"), h("2", "b.txt", "")), slices.Concat(h("K", "", name), long, h("1", "b.txt", "")),
		slices.Concat(long, make([]byte, 1024)), slices.Concat(x("path=d/"), h("\x00", "a.txt", "")),
		slices.Concat(path, h("\x00", "d/", "")),
	} {
		add("", headers)
	}
	return cases
}

// TestTarHeaders reads odd headers, whole and truncated: the reader agrees with
// archive/tar, and asks for more bytes as long as it may need them.
func TestTarHeaders(t *testing.T) {
	for format, at := range map[string]int{"oldgnu": 0, "gnu": 0, "ustar": 0, "posix": 0, "posix-global": 1024, "ustar-prefix": 0} {
		name, size, n := parseHeaders(archives()[format+".tar"][at:])
		equal(t, format, fmt.Sprintf("%s %d %t", name, size, n > 0), "a.cls 1 true")
	}
	for text, want := range map[string]int64{"": 0, "0": 0, "07": 7, "8": -1, "/": -1, "1 ": -1, "1a": -1, "-1": -1,
		strings.Repeat("7", 18): 1<<54 - 1, strings.Repeat("0", 19): -1} {
		equal(t, text, parseDigits([]byte(text), 8), want)
	}
	for _, c := range headerCases() {
		runRow(t, string(c.headers[tarBlock:2*tarBlock]), func(t *testing.T) {
			got := ""
			name, size, n := parseHeaders(c.headers)
			if 0 < n && n <= len(c.headers) {
				got = fmt.Sprintf("%s %d", name, size)
			}
			failIf(t, got != c.fast, "%.100q: parsed as %.100q, want %.100q", c.headers[tarBlock:], got, c.fast)
			for end := range min(n, 4*tarBlock) {
				if _, _, more := parseHeaders(c.headers[:end]); got != "" && (more <= end || more > n) {
					t.Fatalf("%.100q: %d bytes of %d need %d", c.headers[tarBlock:], end, n, more)
				}
			}
			whole := slices.Concat(c.headers, tarEntries("z.txt=1"))
			compareReaders(t, whole)
			for end := 0; end < min(len(c.headers), 4*tarBlock); end += 99 {
				compareReaders(t, whole[:end])
			}
		})
	}
}

// TestTarHeadersAreCheap shows that the usual headers are not left to
// archive/tar, neither in a stream nor by index: a record takes as many
// allocations as one with plain headers.
func TestTarHeadersAreCheap(t *testing.T) {
	plain := tarEntries(slices.Repeat([]string{"a.txt=1", "a.cls=1", "b.txt=1", "b.cls=1"}, 50)...)
	var allocations []float64
	for _, data := range append(otherHeaders(plain), plain) {
		stream, d := tarOf(TarOptions{}, data), must(OpenTar(onDisk(t, "x.tar", data)))
		defer d.Close()
		read := func() { collect(t, stream.Epoch(t.Context(), 0)); readDataset(t, d) }
		allocations = append(allocations, testing.AllocsPerRun(5, read))
	}
	failIf(t, slices.Max(allocations) > slices.Min(allocations)+50,
		"allocations with PAX records, with GNU names, and with neither: %v", allocations)
}

// FuzzTar reads arbitrary bytes as a shard; -fuzzminimizetime 10x makes it
// faster. There is always an end, nothing panics, no more memory is allocated
// than MaxRecord for a file, archive/tar agrees, a resume after every record
// yields the rest, and OpenTar has the same records, or refuses a shard of
// which the stream leaves out the rest.
func FuzzTar(f *testing.F) {
	for _, data := range archives() {
		if len(data) < 40<<10 {
			f.Add(data)
		}
	}
	odd := tarEntries("a.txt=1", "b.txt>a.txt", "b.cls=2")
	for _, data := range append(otherHeaders(odd), odd) {
		f.Add(data)
	}
	for _, c := range headerCases() {
		if len(c.headers) < 8<<10 && !testing.Short() {
			f.Add(slices.Concat(c.headers, tarEntries("z.txt=1")))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const maxRecord = 1 << 16
		compareReaders(t, data)
		data = slices.Clone(data) // sound headers get further
		for at := 0; at+tarBlock <= len(data); at += tarBlock {
			if string(data[at+257:][:5]) == "ustar" {
				data = withHeader(data, at, 0, "")
			}
		}
		compareReaders(t, data)
		open := func(_ context.Context, _ string, offset int64) (io.ReadCloser, error) {
			return &countingFile{Reader: bytes.NewReader(data[min(int(offset), len(data)):])}, nil
		}
		stream := briefly(must(Tar([]string{"x"}, TarOptions{MaxRecord: maxRecord, Open: open})))
		var want []string
		allocates(t, "a stream", 16<<20+(len(data)/tarBlock+1)*2*maxRecord, func() { want = readAll(t, stream) })
		k := 0
		for item := range stream.Items(t.Context(), Cursor{}) {
			if k++; k <= 8 || k > len(want)-8 {
				equal(t, "resumed", resume(t, stream, item.Next), want[k:])
			}
		}
		checkIndexed(t, data, readAll(t, tarOf(TarOptions{}, data)), indexed(t, onDisk(t, "x.tar", data)))
	})
}

// ## The web

// A tarServer is a web server with one object, and a history of what it was
// asked.
type tarServer struct {
	*httptest.Server
	web   webSettings
	asked chan string     // Range and If-Range of each request
	waits []time.Duration // between them
}

// An answer writes the answer to the n-th request, from 1 on.
type answer func(n int, w http.ResponseWriter, r *http.Request)

// serveTar starts a server. Its answers depend on the answer function only.
func serveTar(t *testing.T, answer answer) *tarServer {
	s := &tarServer{asked: make(chan string, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		weak := strings.HasPrefix(r.Header.Get("If-Range"), "W")
		if !r.Close || r.Header.Get("Accept-Encoding") != "identity" || weak || r.Referer() != "" {
			t.Errorf("asked to keep the connection, %t, for another encoding, with a weak tag or a referer: %v", !r.Close, r.Header)
		}
		s.asked <- strings.TrimSpace(r.Header.Get("Range") + " " + r.Header.Get("If-Range"))
		answer(len(s.asked), w, r)
	}))
	t.Cleanup(s.Close)
	s.web = webSettings{client: s.Client(), attempts: 6, stall: time.Minute}
	s.web.wait = func(_ context.Context, d time.Duration) error { s.waits = append(s.waits, d); return nil }
	return s
}

// requests returns what the server was asked.
func (s *tarServer) requests() (all []string) {
	for len(s.asked) > 0 {
		all = append(all, <-s.asked)
	}
	return all
}

// records are the outcomes of the shard that the server has, and of a sound one
// after it.
func (s *tarServer) records(t *testing.T, path string) []string {
	return tarOutcomes(t, func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		if name == "after" {
			return io.NopCloser(bytes.NewReader(tarEntries("z.txt=after"))), nil
		}
		return s.web.open(ctx, name, offset)
	}, s.URL+path, "after")
}

// sends is the answer of a good server that has data with an ETag. Its
// connection breaks after limit bytes, unless limit is negative.
func sends(data []byte, tag string, limit int) answer {
	return func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", tag)
		if limit >= 0 {
			w = &breaking{w, limit}
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
}

// A breaking answer ends with the connection after left bytes, which may be
// those of the headers.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	if b.left < len(p) {
		b.ResponseWriter.Write(p[:b.left])
		b.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	b.left -= len(p)
	return b.ResponseWriter.Write(p)
}

// status is an answer without an object. Its headers are key, value, key,
// value.
func status(code int, headers ...string) answer {
	return func(_ int, w http.ResponseWriter, r *http.Request) {
		for kv := range slices.Chunk(headers, 2) {
			w.Header().Set(kv[0], kv[1])
		}
		w.WriteHeader(code)
	}
}

// redirects is an answer that names another URL.
func redirects(url string) answer { return status(http.StatusFound, "Location", url) }

// says is an answer in these words, and the end of the connection.
func says(words string) answer {
	return func(_ int, w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		must(io.WriteString(must(conn, err), words+"\r\n\r\n"))
		conn.Close()
	}
}

// asking is an answer to a request in which a header has another value, or is
// missing.
func asking(header, value string, answer answer) answer {
	return func(n int, w http.ResponseWriter, r *http.Request) {
		if r.Header.Set(header, value); value == "" {
			r.Header.Del(header)
		}
		answer(n, w, r)
	}
}

// anew is an answer that is made for each request.
func anew(make func(n int) answer) answer {
	return func(n int, w http.ResponseWriter, r *http.Request) { make(n)(n, w, r) }
}

// inTurn are the answers to the first requests; the last answers all others
// too.
func inTurn(answers ...answer) answer {
	return anew(func(n int) answer { return answers[min(n, len(answers))-1] })
}

// TestWeb reads a shard from servers that behave badly, each in its own way.
// Every record comes exactly once, or the shard ends in an error.
func TestWeb(t *testing.T) {
	var entries, all []string
	for i := range 100 {
		key, bin := strconv.Itoa(i), strings.Repeat("x", 7*i)
		entries = append(entries, key+".txt="+key, key+".bin="+bin)
		all = append(all, briefRecord(key, "txt", key, "bin", bin))
	}
	data := tarEntries(entries...) // about 150 kB
	parts := func(size int) int { return (len(data) + size - 1) / size }
	const tag = `"one"`
	good, breaks := sends(data, tag, -1), sends(data, tag, 30000)
	tagged := func(format string, limit int) answer {
		return anew(func(n int) answer { return sends(data, fmt.Sprintf(format, n), limit) })
	}
	flows := func(data []byte, each int) answer { // without a length
		return func(n int, w http.ResponseWriter, r *http.Request) {
			w = &breaking{w, each * n}
			for part := range slices.Chunk(data, 1000) {
				w.Write(part)
			}
		}
	}
	dated := func(unix int64) answer {
		return func(_ int, w http.ResponseWriter, r *http.Request) {
			http.ServeContent(&breaking{w, 30000}, r, "", time.Unix(unix, 0), bytes.NewReader(data))
		}
	}
	date := time.Unix(1e9, 0).UTC().Format(http.TimeFormat)
	longer := anew(func(n int) answer { return sends(data, tag, 30000*n) })
	busy := func(code int) answer { return status(code, "Retry-After", "100") }
	forgets := inTurn(breaks, asking("If-Range", "", sends(data, "", 40000)), asking("If-Range", "", sends(data, `"two"`, -1)))
	target := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Referer() != "" || !r.Close { // the referer would hold the signature of the first request
			t.Errorf("referer %q, close %t", r.Referer(), r.Close)
		}
		w.Write(data)
	}))
	defer target.Close()
	const refuses = "redirects to something other than an http or https URL"
	for _, c := range []struct {
		name   string
		answer answer
		asked  int    // the requests
		says   string // what the error says; empty: there is none
	}{
		{"good", good, 1, ""},
		{"breaks all the time", sends(data, tag, 16000), parts(16000), ""},
		{"breaks, and has no ranges", asking("Range", "", longer), parts(30000), ""},
		{"breaks without a length", flows(data, 60000), parts(60000), ""},
		{"breaks, and never gets further", asking("Range", "", breaks), 6, "attempt 6: unexpected EOF"},
		{"breaks before the first byte", sends(data, tag, 0), 6, "attempt 6: unexpected EOF"},
		{"not yet", inTurn(busy(503), busy(408), busy(429), busy(500), busy(504), good), 6, ""},
		{"no connection", func(int, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 6, "attempt 6: EOF"},
		{"not found", status(404), 1, "404 "}, {"forbidden later", inTurn(breaks, status(403)), 2, "403 "},
		{"nothing", status(204), 1, "204 "}, {"a range, unasked", status(206), 1, "206 "},
		{"not modified", status(304), 1, "304 "}, {"changes its tag", tagged(`"%d"`, 30000), 2, "has changed"},
		{"changes its tag, and does not look", asking("If-Range", "", tagged(`"%d"`, 30000)), 2, "has changed"},
		{"changes its date", anew(func(n int) answer { return dated(int64(n)) }), 2, "has changed"},
		{"has only a date", inTurn(dated(1e9), func(n int, w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("If-Range"); got != date {
				t.Errorf("asks for a range of %q, want %q", got, date)
			}
			dated(1e9)(n, w, r)
		}), parts(30000), ""},
		{"forgets its tag", inTurn(breaks, asking("If-Range", "", sends(data, "", 40000)), good), 3, ""},
		{"forgets its tag, and changes it", forgets, 3, "has changed"},
		{"changes its length", anew(func(n int) answer { return sends(data[:len(data)-n], "", 30000) }), 2, "has changed"},
		{"changes its weak tag", tagged(`W/"%d"`, 30000), 2, "has changed"},
		{"changes before the first byte", tagged(`"%d"`, 0), 2, "has changed"},
		{"has a weak tag", sends(data, `W/"one"`, 40000), parts(40000), ""},
		{"promises more than it has", inTurn(func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)+1000))
			w.Write(data)
		}, status(416)), 2, "416"},
		{"has a truncated shard", sends(data[:20480], tag, -1), 1, "unexpected EOF"},
		{"sends another range", inTurn(breaks, asking("Range", "bytes=5-", breaks)), 2, `answers with the range "bytes 5-`},
		{"sends a later range", inTurn(breaks, asking("Range", "bytes=40000-", breaks)), 2, `answers with the range "bytes 40000-`},
		{"is empty in the end", inTurn(breaks, asking("Range", "", sends(nil, "", -1))), 2, "has changed"},
		{"sends more than it has promised", inTurn(breaks, flows(append(data, data...), 1<<20)), 2, "has changed"},
		{"sends short ranges", inTurn(breaks, anew(func(n int) answer {
			return asking("Range", fmt.Sprintf("bytes=%d-%d", 30000*(n-1), 30000*n-1), good)
		})), parts(30000), ""},
		{"compresses on the way", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			sends(gzipped(data), tag, -1)(n, w, r)
		}, 1, ""},
		{"redirects", redirects(target.URL + "/x.tar?sig=2"), 1, ""},
		{"redirects in a circle", redirects("/again"), 10, "attempt 1: "},
		{"redirects to another protocol", redirects("ftp://host/x.tar?sig=secret"), 1, refuses},
		{"redirects to no port", redirects("http://user:secret@host:bad/x?sig=secret"), 1, refuses},
		{"redirects to no host", redirects("http:///x?sig=secret"), 1, refuses},
		{"redirects to no path", redirects("/a%zz?sig=secret"), 1, refuses},
		{"redirects to no text", says("HTTP/1.1 302 Found\r\nLocation: /\x01?sig=secret"), 6, "attempt 6: the request has failed"},
		{"answers in words of its own", says("HTTP/1.1 404 No /x?sig=secret"), 1, "404 " + http.StatusText(404)},
		{"does not speak HTTP", says("no /x?sig=secret"), 6, "attempt 6: the request has failed"},
		{"ends badly", says("HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: \x01?sig=secret"), 6, "request has failed"},
	} {
		runRow(t, c.name, func(t *testing.T) {
			s := serveTar(t, c.answer)
			s.web.client = target.Client() // which knows its certificate
			got := s.records(t, "/x.tar?sig=secret")
			equal(t, "requests", len(s.asked), c.asked)
			want := all
			if c.says != "" {
				want = append(slices.Clone(all[:max(0, len(got)-2)]), "error /x.tar … "+c.says)
			}
			same(t, "records", got, strings.Join(want, "; ")+"; z{txt:after}")
		})
	}
}

// TestWebWaits shows what is asked for after a failure, and how long the waits
// are: they double, start anew after a byte, and are as long as Retry-After
// says.
func TestWebWaits(t *testing.T) {
	const s = time.Second
	breaks := sends(tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt="+strings.Repeat("y", 5000)), `"tag"`, 4000)
	for _, c := range []struct {
		answer   answer
		requests []string
		waits    []time.Duration
	}{
		{inTurn(breaks, status(429, "Retry-After", "100"), breaks),
			[]string{"", `bytes=4000- "tag"`, `bytes=4000- "tag"`, `bytes=8000- "tag"`, `bytes=12000- "tag"`},
			[]time.Duration{s, 100 * s, s, s}},
		{status(500), make([]string, 6), []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s}},
	} {
		runRow(t, fmt.Sprint(len(c.requests), " requests"), func(t *testing.T) {
			server := serveTar(t, c.answer)
			server.records(t, "")
			equal(t, "requests", server.requests(), c.requests)
			equal(t, "waits", len(server.waits), len(c.waits))
			for i, d := range server.waits {
				if want := c.waits[i]; d > want || d < want/2 || want > 30*s && d != want {
					t.Errorf("wait %d is %v, want %v or, without Retry-After, up to a half less", i, d, want)
				}
			}
		})
	}
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		header   string
		min, max time.Duration // in seconds
	}{
		{"", 0, 0}, {"soon", 0, 0}, {"-5", 0, 0}, {"0", 0, 0}, {"7", 7, 7}, {"119", 119, 119}, {"121", 120, 120},
		{"99999999999999999999", 120, 120}, {in(-time.Hour), 0, 0}, {in(100 * time.Second), 90, 101}, {in(time.Hour), 120, 120},
	} {
		runRow(t, fmt.Sprintf("%d to %d", c.min, c.max), func(t *testing.T) {
			d := parseRetryAfter(c.header)
			failIf(t, d < c.min*s || d > c.max*s, "Retry-After: %q: %v, want %d to %d seconds", c.header, d, c.min, c.max)
		})
	}
}

// TestWebStream shows how a stream reads from the web: a resume asks for what
// follows the cursor, but for all of a compressed shard; nothing is asked for
// after Close; and the end of the context ends a request that is waited for.
func TestWebStream(t *testing.T) {
	data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt="+strings.Repeat("y", 5000))
	for _, c := range []struct {
		data  []byte
		asked []string
	}{{data, []string{"", "bytes=5632-", "bytes=5632-"}}, {gzipped(data), []string{"", "", ""}}} {
		whole := sends(c.data, `"tag"`, -1)
		s := serveTar(t, inTurn(whole, whole, sends(c.data[:len(c.data)/3], "", -1)))
		stream := briefly(tarFrom(s.web.open, s.URL))
		var at Cursor
		readFirst(stream.Run(t.Context(), &at))
		rest := resume(t, stream, throughJSON(t, at))
		same(t, "the rest", rest, briefRecord("b", "txt", strings.Repeat("y", 5000)))
		shorter := resume(t, stream, throughJSON(t, at))
		same(t, "of a shorter object", shorter, "error unexpected EOF … or the cursor was saved with another version")
		equal(t, "requests", s.requests(), c.asked)
	}

	s := serveTar(t, sends(data, `"tag"`, 6000))
	r := must(s.web.open(t.Context(), s.URL, 0))
	r.Close()
	because(t, os.ErrClosed, errorOf(io.ReadAll(r)))
	equal(t, "requests after Close", len(s.asked), 1)

	ctx, cancel := context.WithCancelCause(t.Context())
	s = serveTar(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Write(data[:6000])
		w.(http.Flusher).Flush()
		cancel(errBad)
		<-r.Context().Done()
	})
	got := outcomes(tarFrom(s.web.open, s.URL, "y").Epoch(ctx, 0))
	equal(t, "stopped", got[len(got)-1], "error bad sample")
}

// A foreign context is of no type that package context knows. A context that is
// made of it, and not canceled, leaves a goroutine.
type foreign struct {
	context.Context
	done chan struct{}
}

func (f foreign) Done() <-chan struct{} { return f.done }

// TestWebStall shows, in fake time and over a network in memory, that a server
// that stops in the middle is asked again after a minute, and that a loop that
// takes its time is no such server.
func TestWebStall(t *testing.T) {
	data, large := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt=2"), strings.Repeat("x", 3*tarBuffer)
	slow := tarEntries("a.bin="+large, "b.bin="+large)
	whole := func(promised int, sent []byte) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", promised, sent)
	}
	rest := fmt.Sprintf("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3000-%d/*\r\nContent-Length: %d\r\n\r\n%s",
		len(data)-1, len(data)-3000, data[3000:])
	for _, c := range []struct {
		name    string
		answers []string // each followed by silence
		asked   []string
		pause   time.Duration // of the loop, after each record
		stalls  int
		want    string
	}{
		{"stalls", []string{whole(len(data), data[:3000]), "", rest}, []string{"", "bytes=3000-", "bytes=3000-"}, 0, 2,
			briefRecord("a", "txt", strings.Repeat("x", 5000)) + "; b{txt:2}"},
		{"slow loop", []string{whole(len(slow), slow)}, []string{""}, time.Hour, 0,
			briefRecord("a", "bin", large) + "; " + briefRecord("b", "bin", large)},
		{"no answer", make([]string, 6), make([]string, 6), 0, 6, "error attempt 6: the server has stalled"},
		{"no data", slices.Repeat([]string{whole(9, nil)}, 6), make([]string, 6), 0, 6, "error attempt 6: the server has stalled"},
	} {
		runRowInBubble(t, c.name, func(t *testing.T) {
			s := tarServer{asked: make(chan string, 10)}
			transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				go func() {
					defer server.Close()
					if r, err := http.ReadRequest(bufio.NewReader(server)); err == nil {
						s.asked <- r.Header.Get("Range")
						io.WriteString(server, c.answers[min(len(s.asked), len(c.answers))-1])
						io.Copy(io.Discard, server) // until the client goes
					}
				}()
				return client, nil
			}}
			defer transport.CloseIdleConnections()
			w := webSettings{client: &http.Client{Transport: transport}, attempts: 6, stall: time.Minute, wait: pause}
			var got []string
			start := time.Now()
			ctx := foreign{context.Background(), make(chan struct{})}
			for v, err := range briefly(tarFrom(w.open, "http://x")).Epoch(ctx, 0) {
				got = append(got, outcomes(one(v, err))...)
				time.Sleep(c.pause)
			}
			took := time.Since(start) - time.Duration(len(got))*c.pause
			same(t, "records", got, c.want)
			equal(t, "requests", s.requests(), c.asked)
			if least := time.Duration(c.stalls) * time.Minute; took < least || took > least+time.Second<<c.stalls-time.Second {
				t.Errorf("it took %v, want %d stalls of a minute and the waits after them", took, c.stalls)
			}
			start = time.Now()
			wait, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errBad)
			defer cancel()
			equal(t, "a wait whose context ends", fmt.Sprint(pause(wait, time.Hour), time.Since(start)), "bad sample 1m0s")
		})
	}
}

// TestWebNever shows which errors cannot change, so that nothing is asked for
// again.
func TestWebNever(t *testing.T) {
	equal(t, "what is known of an error", redactError(fmt.Errorf("secret: %w", io.EOF)), io.EOF)
	busy := redactError(errors.New(http.StatusText(http.StatusBadGateway)))
	saysAll(t, busy, "502 ")
	equal(t, "whether it is for ever", errors.As(busy, new(permanentError)), false)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(407) }))
	defer proxy.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer secure.Close()
	s := serveTar(t, redirects("/again"))
	for _, c := range []struct {
		name     string
		as       any   // what errors.As finds in the error, or the error's last words
		redirect error // of the user's own rules for redirects
	}{
		{secure.URL + "/x.tar", new(*tls.CertificateVerificationError), nil},
		{s.URL + "/x.tar", "bad sample", errBad},
		{"http://127.0.0.1:99999/x.tar", new(*net.AddrError), nil},
		{strings.Replace(s.URL, "http:", "https:", 1) + "/x.tar", http.ErrSchemeMismatch.Error(), nil},
		{"https://behind.a.proxy/x.tar", "407 ", nil},
	} {
		runRow(t, fmt.Sprintf("%T", c.as), func(t *testing.T) {
			w := s.web
			transport := &http.Transport{TLSClientConfig: new(tls.Config)}
			if strings.Contains(c.name, "proxy") {
				transport.Proxy = http.ProxyURL(must(url.Parse(proxy.URL)))
			}
			w.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return c.redirect }}
			w.wait = func(context.Context, time.Duration) error { t.Errorf("%s is asked for again", c.name); return errBad }
			_, err := w.open(t.Context(), c.name, 0)
			if says, ok := c.as.(string); ok {
				saysAll(t, err, "attempt 1: ", says)
			} else if !errors.As(err, c.as) {
				t.Errorf("%s: %v, want a %T", c.name, err, c.as)
			}
		})
	}
}

// TestSecrets looks for what a URL should not tell in every error there is,
// also in names that are not quite URLs.
func TestSecrets(t *testing.T) {
	s := serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "secret" || r.URL.RawQuery != "sig=secret" {
			t.Errorf("asked as %q with %q and %q", user, password, r.URL.RawQuery)
		}
		w.WriteHeader(404)
	})
	s.web.attempts = 1
	for _, c := range []struct {
		open             Opener
		name, safe, says string
	}{
		{s.web.open, strings.Replace(s.URL, "http://", "http://user:secret@", 1) + "/x.tar?sig=secret#secret", s.URL + "/x.tar", "404"},
		{s.web.open, "http://user:secret@127.0.0.1:1/x%2fy.tar?sig=secret", "http://127.0.0.1:1/x%2fy.tar", ""},
		{s.web.open, "http://user:secret@127.0.0.1:secret/x.tar", "http:(not a URL)", "attempt 1: this is not a URL"},
		{s.web.open, "http://user:sec%ret@x/", "http:(not a URL)", "attempt 1: this is not a URL"},
		{nil, "s3://user:secret@bucket/x.tar?sig=secret#secret", "s3://bucket/x.tar", "http and https … Opener"},
		{nil, "pipe:curl -s https://user:secret@host/x.tar", "pipe:(not a URL)", "http and https"},
		{nil, "foo:bar://user:secret@host/x.tar", "foo:(not a URL)", "http and https"},
		{nil, "| curl -u user:secret https://host/x.tar", "|:(not a URL)", "http and https"},
		{nil, "a:b.tar", "a:b.tar", ""},
	} {
		runRow(t, strings.TrimPrefix(c.safe, s.URL), func(t *testing.T) {
			equal(t, c.name, redactURL(c.name), c.safe)
			same(t, c.name, tarOutcomes(t, c.open, c.name), fmt.Sprintf("error shard %q … %s", c.safe, c.says))
		})
	}
	for _, scheme := range []string{"https", "HTTPS", "s3"} {
		got := indexed(t, scheme+"://user:secret@host/x.tar?sig=secret")
		same(t, scheme, got, "error "+strings.ToLower(scheme)+"://host/x.tar … Tar reads URLs")
	}
	// Cursors still tell shards apart whose names are not shown.
	equal(t, "digests differ", hashNames([]string{"pipe:curl https://h/1.tar"}) != hashNames([]string{"pipe:curl https://h/2.tar"}), true)
	equal(t, "signatures do not count", hashNames([]string{"https://h/1.tar?sig=1"}), hashNames([]string{"https://i/1.tar?sig=2"}))
}

// TestOpenShard shows which names OpenShard reads, from an offset: files, the
// URLs of files, the web, schemes in capitals. No name is executed.
func TestOpenShard(t *testing.T) {
	s := serveTar(t, sends([]byte("data"), "", -1))
	name := onDisk(t, "a b.tar", []byte("data"))
	escaped := "/" + strings.TrimPrefix(strings.ReplaceAll(filepath.ToSlash(name), " ", "%20"), "/") // on Windows /C:/…
	capitals := strings.Replace(s.URL, "http", "HTTP", 1)
	for _, name := range []string{capitals, "file://" + escaped, "FILE://localhost" + escaped, name} {
		r := must(OpenShard(t.Context(), name, 1))
		equal(t, name, string(must(io.ReadAll(r))), "ata")
		r.Close()
	}
	evil := filepath.Join(filepath.Dir(name), "evil")
	for _, name := range []string{"file://host/x.tar", "gs://host/x.tar", "http:///x.tar"} {
		saysAll(t, errorOf(OpenShard(t.Context(), name, 0)), "OpenShard reads files and http and https URLs")
	}
	for _, name := range []string{"-", name + "x", "pipe:touch " + evil, "|touch " + evil} {
		err := errorOf(OpenShard(t.Context(), name, 0))
		failIf(t, !errors.As(err, new(*fs.PathError)), "%s: %v, want that there is no such file", name, err)
	}
	saysAll(t, errorOf(OpenShard(t.Context(), name, -1)), "a b.tar")
	equal(t, "files", len(must(os.ReadDir(filepath.Dir(name)))), 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBad)
	equal(t, "with a context that has ended", errorOf(OpenShard(ctx, name, 0)), errBad)
}

// ## The index

// TestTarDataset shows records by their index, also from several goroutines at
// once, and the errors of the data set.
func TestTarDataset(t *testing.T) {
	one := onDisk(t, "one.tar", tarEntries("d/a.txt=1", "d/a.CLS=2", "README=3", "b.bin="+strings.Repeat("x", 3000), "b.txt=4"))
	y, z := strings.Repeat("y", 1<<20), strings.Repeat("z", 5<<20)
	two := onDisk(t, "two.tar", tarEntries("c.txt=5", "c.bin="+y, "z="+z, "c.cls=6"))
	data := must(OpenTar(one, two, one))
	defer data.Close()
	equal(t, "Len", data.Len(), 5)
	want := indexed(t, one)
	want = slices.Concat(want, indexed(t, two), want)
	equal(t, "records", want[0], "d/a{txt:1 cls:2}")

	loader := newLoader[Record](t, data, Options{BatchSize: 2, Workers: 4})
	for epoch := range 5 {
		var got []string
		for _, r := range samples(t, loader, epoch) {
			got = append(got, brief(r))
			f := r.Files[0]
			failIf(t, cap(f.Data) != len(f.Data), "field %s of %s may grow into the next", f.Name, r.Key)
		}
		equal(t, "loaded", got, want)
	}
	for _, i := range []int{-1, 5} {
		saysAll(t, errorOf(data.Get(t.Context(), i)), fmt.Sprintf("index %d", i), "5 samples")
	}
	equal(t, "the shard of record 3", must(data.Get(t.Context(), 3)).Shard, one)
	allocates(t, "a record of 1 MiB, with 5 MiB between its files", 2<<20, func() { must(data.Get(t.Context(), 2)) })
	data.Close()
	for i, offset := range map[int]int64{1: 3072, 2: 0} { // read at once, and file by file
		_, err := data.Get(t.Context(), i)
		if e := (*TarError)(nil); !errors.As(err, &e) || errors.Unwrap(e.Err) != os.ErrClosed || e.Offset != offset {
			t.Errorf("after Close: %v", err)
		}
	}
	free := func() uintptr { // the lowest number that is free, on most systems
		f := must(os.Open(one))
		defer f.Close()
		return f.Fd()
	}
	before := free()
	refused(t, []refusal{
		{errorOf(OpenTar()), "OpenTar: there are no shards"},
		{because(t, fs.ErrNotExist, errorOf(OpenTar(one, one+"missing"))), "OpenTar: shard … one.tarmissing"},
		{errorOf(OpenTar(onDisk(t, "x.tar", gzipped(tarEntries("a.txt=1"))))), "x.tar … compressed … use Tar"},
	})
	if after := free(); after > before && runtime.GOOS != "windows" {
		t.Errorf("an error of OpenTar leaves files open: the next is %d, was %d", after, before)
	}
}

// TestTarChanged changes a shard under an open data set: each byte of the
// headers, a name, a size, another file before or behind what was read. Every
// record that is read is the one that was there, or an error says that the
// shard has changed.
func TestTarChanged(t *testing.T) {
	plain := tarEntries("a.txt=1", "a.cls=2", "b.txt=3", "README=4", "b.cls=5", "c.txt=6")
	far := tarEntries("a.txt=1", "z="+strings.Repeat("z", 1<<20), "a.cls=2") // which is not read at once
	check := func(shard []byte, others ...[]byte) (noticed int) {
		name := onDisk(t, "x.tar", shard)
		d := must(OpenTar(name))
		defer d.Close()
		sound := readDataset(t, d)
		for _, other := range others {
			must(0, os.WriteFile(name, other, 0o666))
			for i, got := range readDataset(t, d) {
				if strings.Contains(got, "the shard has changed") {
					noticed++
				} else {
					equal(t, fmt.Sprintf("record %d", i), got, sound[i])
				}
			}
		}
		return noticed
	}
	step := unlessShort(5, 50) // from one byte that is changed to the next
	for _, shard := range append(otherHeaders(plain), plain) {
		var others [][]byte
		for at := 0; at < len(shard)/2; at += step {
			if shard[at/512*512+257] == 'u' { // in a header
				others = append(others, withBytes(shard, at, string(shard[at]^2)))
			}
		}
		noticed := check(shard, others...)
		failIf(t, noticed < 100/step, "of %d bytes that were changed, %d were noticed", len(others), noticed)
	}
	for _, c := range []struct {
		name    string
		was, is []byte
		want    int
	}{
		{"a gains a file, b loses one", plain, tarEntries("a.txt=1", "a.cls=2", "a.json=3", "README=4", "b.cls=5", "c.txt=6"), 2},
		{"size", plain, tarEntries("a.txt=1", "a.cls=22", "b.txt=3", "README=4", "b.cls=5", "c.txt=6"), 1},
		{"name", plain, tarEntries("a.txt=1", "a.clz=2", "b.txt=3", "README=4", "b.cls=5", "c.txt=6"), 1},
		{"c gains a file", plain, tarEntries("a.txt=1", "a.cls=2", "b.txt=3", "README=4", "b.cls=5", "c.txt=6", "c.cls=7"), 1},
		{"key", plain, tarEntries("a.txt=1", "a.cls=2", "B.txt=3", "README=4", "B.cls=5", "c.txt=6"), 1}, // a is as it was
		{"512 bytes", plain, plain[:512], 3},
		{"nothing", plain, nil, 3},
		{"1536 bytes", plain, plain[:1536], 3},
		{"PAX", plain, otherHeaders(plain)[0], 3},
		{"compressed", plain, slices.Concat(gzipped(plain), plain), 3},
		{"far, 512 bytes", far, far[:512], 1},
		{"far, 513 bytes", far, far[:513], 1},
		{"far, 1 MiB", far, far[:1<<20], 1},
		{"far, no data", far, tarEntries("a.txt=1", "z="+strings.Repeat("z", 1<<20), "a.cls="), 1},
	} {
		runRow(t, c.name, func(t *testing.T) {
			equal(t, "records that have changed", check(c.was, c.is), c.want)
		})
	}
}

// TestTarMaxRecord shows that names and the files themselves count under
// MaxRecord, and that a record by index has the default.
func TestTarMaxRecord(t *testing.T) {
	big, half := strings.Repeat("x", 4000), strings.Repeat("y", 1900)
	names := must(Expand("b.{1..20}" + strings.Repeat("n", 100) + "=")) // without data; neither names nor files alone are too much
	for i, b := range [][]string{names, {"b.1=" + big, "b.2=" + half}} {
		const fault = `; error entry "b. … make the record larger than MaxRecord, 5000; c{txt:3}`
		want := briefRecord("a", "bin", big) + fault
		data := tarEntries(slices.Concat([]string{"a.bin=" + big}, b, []string{"c.txt=3"})...)
		for _, data := range append(otherHeaders(data), data) {
			same(t, "streamed", readAll(t, tarOf(TarOptions{MaxRecord: 5000}, data)), want)
			if i == 0 {
				opts := TarOptions{MaxRecord: 5000, Fields: []string{"txt"}}
				same(t, "names that are not wanted", checkStream(t, tarOf(opts, data), 0), "a{}"+fault)
			}
		}
	}
	name := onDisk(t, "x.tar", tarHeader("0", "a.bin", "")) // and a hole of 2 GiB, with the end marker
	file := must(os.OpenFile(name, os.O_WRONLY, 0))
	defer file.Close()
	must(file.WriteAt(withHeader(tarHeader("0", "a.bin", ""), 0, 124, "20000000000\x00"), 0))
	must(0, file.Truncate(512+2<<30+1024))
	same(t, "by index", indexed(t, name), "error 2147483648 bytes make the record larger than MaxRecord, 1073741824")
}

// ## The writer

// TestTarWriter shows that records are read back as they were written, and that
// the same records make the same bytes.
func TestTarWriter(t *testing.T) {
	long, image, name := strings.Repeat("long/", 60)+"ü", strings.Repeat("x", 1000), strings.Repeat("x", 999_000)
	records := []Record{
		{Key: "b", Files: []File{{"txt", []byte("1")}, {"cls", []byte("2")}}},
		{Key: "./d/a", Shard: "another", Files: []File{{"seg.png", []byte(image)}, {"__key__", nil}}},
		{Key: long, Files: []File{{"txt", nil}}},
		{Key: "__m__x", Files: []File{{"json", []byte("{}")}}},
		{Key: "y", Files: []File{{"a", []byte("1")}, {name, []byte("2")}}},
	}
	var shards [2]bytes.Buffer
	for i := range shards {
		w := NewTarWriter(&shards[i])
		for _, r := range records {
			must(0, w.Write(r))
			slices.Reverse(r.Files)
		}
		must(0, w.Close())
		saysAll(t, w.Write(Record{Key: "e", Files: []File{{"txt", nil}}}), "TarWriter", "after close")
	}
	equal(t, "the same bytes", bytes.Equal(shards[0].Bytes(), shards[1].Bytes()), true)
	want := "b{cls:2 txt:1}; " + briefRecord("./d/a", "__key__", "", "seg.png", image) + "; " + long + "{txt:}; __m__x{json:{}}; " +
		briefRecord("y", "a", "1", name, "2")
	streamed, byIndex := checkShard(t, TarOptions{}, shards[0].Bytes())
	same(t, "streamed", streamed, want)
	same(t, "by index", byIndex, want)
	h := must(tar.NewReader(&shards[0]).Next())
	header := fmt.Sprintf("%s %o %d %q %d %s", h.Name, h.Mode, h.Uid, h.Uname, h.ModTime.Unix(), h.Format)
	equal(t, "a header", header, `b.cls 444 0 "" 0 USTAR`)
}

// TestTarWriterErrors shows which records are refused, without a byte written,
// and what the errors of a writer are.
func TestTarWriterErrors(t *testing.T) {
	var b bytes.Buffer
	w := NewTarWriter(&b)
	must(0, w.Write(Record{Key: "b", Files: []File{{"txt", nil}}}))
	before, long := b.Len(), strings.Repeat("x", 1<<20)
	const skipped = "would be skipped when it is read, as are hidden files, files without a dot, and names like __meta__"
	for _, c := range []struct{ record, says string }{ // the key, a blank, the fields
		{"c", `record "c": it has no files`}, {"b txt", `record "b": the shard has a record with this key already`},
		{" txt", `record "": file ".txt" would be skipped`}, {"d/ txt", `file "d/.txt" would be skipped`},
		{"c.x txt", `file "c.x.txt" would be read as field "x.txt" of record "c"`},
		{"d/.c txt", `file "d/.c.txt" ` + skipped}, {"__c__/d txt", `file "__c__/d.txt" ` + skipped},
		{"/c txt", `record "/c": the key must be a relative path`},
		{"d/../../c txt", `record "d/../../c": the key must be a relative path without ".."`},
		{"c\x00 txt", `file "c\x00.txt" must not have a NUL`}, {"c t\x00t", `file "c.t\x00t" must not have a NUL`},
		{"c ", `field "" must not be empty`}, {"c txt TXT", `file "c.TXT" would be read as field "txt"`},
		{"c a/b", `file "c.a/b" would be skipped`}, {"c txt cls txt", `record "c": field "txt" comes twice`},
		{"y a " + long, "has 1048578 bytes, must have at most 1000000"}, {long + " a txt", "must have at most 1000000"},
		{"y a .jpg", `field ".jpg" must be "jpg"`}, {"y a y.jpg", `field "y.jpg" must be "jpg"`},
		{"d/y a y.seg.png", `field "y.seg.png" must be "seg.png"`}, {"d/y a d/y.jpg", `field "d/y.jpg" must be "jpg"`},
	} {
		runRow(t, c.says, func(t *testing.T) {
			words := strings.Split(c.record, " ")
			r := Record{Key: words[0]}
			for _, field := range words[1:] {
				r.Files = append(r.Files, File{field, nil})
			}
			err := w.Write(r)
			saysAll(t, err, "dataloader: TarWriter: record ", c.says)
			failIf(t, len(err.Error()) > 1000, "an error of %d bytes", len(err.Error()))
		})
	}
	equal(t, "bytes of bad records", b.Len()-before, 0)

	out, in := io.Pipe()
	out.CloseWithError(errBad)
	w = NewTarWriter(in)
	saysAll(t, w.Write(Record{Key: "c", Files: []File{{"txt", nil}}}), "TarWriter", `record "c"`, "bad sample")
	saysAll(t, w.Close(), "TarWriter", "bad sample")
}

// ## Expand, Decode and ImageTensor

// TestExpand shows what patterns stand for, as in bash, and which patterns are
// errors.
func TestExpand(t *testing.T) {
	for pattern, want := range map[string]string{
		"train.tar": "train.tar", "": "", `a\b`: `a\b`,
		"train-{000..003}.tar": "train-000.tar train-001.tar train-002.tar train-003.tar",
		"{8..11}":              "8 9 10 11", "{08..11}": "08 09 10 11", "{001..3}": "001 002 003", "{1..03}": "01 02 03",
		"{0..2}": "0 1 2", "{5..5}": "5", "{3..0}": "3 2 1 0", "{11..08}": "11 10 09 08", "{-1..1}": "-1 0 1",
		"{-01..1}": "-01 000 001", "{1..-1}": "1 0 -1",
		"{a,b}{1,2}": "a1 a2 b1 b2", "{a,b}-{1..2}{x,y}.tar": "a-1x.tar a-1y.tar a-2x.tar a-2y.tar b-1x.tar b-1y.tar b-2x.tar b-2y.tar",
		"{,x}": " x", "{1,2,}": "1 2 ", "{1..3,7}": "1..3 7",
		"{9223372036854775806..9223372036854775807}":   "9223372036854775806 9223372036854775807",
		"{-9223372036854775807..-9223372036854775808}": "-9223372036854775807 -9223372036854775808",
	} {
		runRow(t, pattern, func(t *testing.T) { equal(t, "names", strings.Join(must(Expand(pattern)), " "), want) })
	}
	const allowed, many = "must be a list such as {a,b}, or numbers such as {000..146}", "more than 1048576 names"
	const pairs = "braces must come in pairs, and must not be nested"
	for pattern, says := range map[string]string{
		"a{b": pairs, "a}b": pairs, "{a,b}}": pairs, "{{a,b}": pairs, "x{a,b}{": pairs, "{a,b}{1,2": pairs, "p{a,{b,c}d,}s": pairs,
		"x{{a,b}}y": pairs, "{1..{2,3}}": pairs, "}": pairs, "{": pairs, "{a}": `"{a}" ` + allowed, "{}": `"{}" ` + allowed,
		"{000...146}": `"{000...146}" ` + allowed, "{000-146}": allowed, "{a..c}": allowed, "{a..3}": allowed, "{1..3..x}": allowed,
		"{0..10..5}": allowed, "{1..}": allowed, "{1..2}{a}": `"{a}" ` + allowed, "{1..99999999999999999999}": allowed,
		"{1..9223372036854775807}": many, "{0..1048576}": many, "{-9223372036854775808..0}": many,
		"{1..2}{1..1024}{1..513}{1..2}": many, "{" + strings.Repeat(",", 1<<20) + "}": many, "{1..1025}{1..1024}": many,
	} {
		runRow(t, pattern, func(t *testing.T) { saysAll(t, errorOf(Expand(pattern)), "dataloader: Expand", says) })
	}
	equal(t, "as many as there may be", len(must(Expand("{1..1024}{1..1024}"))), 1<<20)
}

// A gray JPEG and a GIF of 3×2 pixels. A test that encoded them would import
// the packages that Decode must import.
const jpegData = "/9j/2wBDAAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ" +
	"H/wAALCAACAAMBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AP//Z"

const gifData = "R0lGODlhAwACAIAAAAAAAP///ywAAAAAAwACAAACAoRfADs="

// checkDecoded checks, in a subtest, what Decode makes of a file: a type and a
// value, or an error, and then no value.
func checkDecoded(t *testing.T, name, data, want string) {
	t.Helper()
	runRow(t, name+" "+want, func(t *testing.T) {
		v, err := Decode(name, []byte(data))
		says, fails := strings.CutPrefix(want, "error ")
		got := fmt.Sprintf("%T %v", v, v)
		if img, ok := v.(image.Image); ok {
			got = fmt.Sprintf("%T %v", v, img.Bounds())
		}
		if fails {
			saysAll(t, err, fmt.Sprintf("Decode(%.100q", name), says)
			failIf(t, len(err.Error()) > 1000, "an error of %d bytes", len(err.Error()))
			want = "<nil> <nil>"
		}
		got = strings.TrimPrefix(got, "dataloader.")
		failIf(t, got != want || !fails && err != nil, "%s %.100q: %s and %v, want %s", name, data, got, err, want)
	})
}

// TestDecode shows what is made of each kind of file.
func TestDecode(t *testing.T) {
	// Images with a header only, which need not be as large as it says.
	header := func(before string, order binary.AppendByteOrder, side uint16, after string) string {
		size := string(order.AppendUint16(nil, side))
		return before + size + size + after
	}
	jpegOf := func(kind string, side uint16) string {
		const jfif = "\xff\xd8\xff\xe0\x00\x10JFIF\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff"
		return header(jfif+kind+"\x00\x0b\x08", binary.BigEndian, side, "\x01\x01\x11\x00")
	}
	gifOf := func(side uint16) string { // with a comment that would say "progressive" in a JPEG
		return header("GIF89a", binary.LittleEndian, side, "\x00\x00\x00!\xfe\x02\xff\xc2\x00")
	}
	var b bytes.Buffer
	must(0, png.Encode(&b, image.NewGray(image.Rect(0, 0, 3, 2))))
	gz := func(data string) string { return string(gzipped([]byte(data))) }
	pngs, jpegs, gifs := b.String(), unBase64(jpegData), unBase64(gifData)
	const gray = "*image.Gray (0,0)-(3,2)"
	many := strings.Repeat("x", 1000)
	for _, c := range []struct{ names, data, want string }{
		{"png d.x/a.seg.PNG jpg", pngs, gray}, {"jpg JPEG", jpegs, gray}, {"gif", gifs, "*image.Paletted (0,0)-(3,2)"},
		{"json", `{"a":[1,null]}`, "map[string]interface {} map[a:[1 <nil>]]"},
		{"jsn", " 12345678901234567890.10\n", "json.Number 12345678901234567890.10"},
		{"jsonl", "{\"a\":1}\n\n[2]\r\n9007199254740993", "[]interface {} [map[a:1] [2] 9007199254740993]"},
		{"jsonl", "", "[]interface {} []"}, {"txt text a.transcript", "text", "string text"},
		{"cls cls2 class index inx id", " 12\n", "int 12"}, {"count", "-1", "int -1"},
		{"bin README", "12", "[]uint8 [49 50]"}, {"TXT.GZ", gz("text"), "string text"}, {"d.x/a.cls.gz", gz("1") + gz("2"), "int 12"},
		{"txt.gz", gz("1") + gz("") + gz("23") + gz(""), "string 123"}, {"txt.gz", gz("text") + gz("x")[:20], "error unexpected EOF"},
		{"gz a.gz", gz("x"), "[]uint8 [120]"}, {"txt.gz.gz", gz(gz("text")), "string text"}, {"png.gz", gz(pngs), gray},
		{"gif", gifOf(65535), "error 65535 × 65535 pixels, must have 1 to 134217728"},
		{"gif", gifOf(11586), "error pixels"}, {"gif", gifOf(11585), "error unexpected EOF"}, {"gif", gifOf(1), "error unexpected EOF"},
		{"jpg", jpegOf("\xc0", 11586), "error pixels"}, {"jpg", jpegOf("\xc0", 11585), "error unexpected EOF"},
		{"jpg", jpegOf("\xc2", 6689), "error 6689 × 6689 pixels, must have 1 to 44739242"}, // progressive
		{"jpg", jpegOf("\xc2", 6688), "error unexpected EOF"},
		// A comment with the bytes of a marker, and bytes between the segments.
		{"jpg", jpegOf("\xfe\x00\x04\xff\xc2\xff\xc0", 11585), "error unexpected EOF"},
		{"jpg", jpegOf("\xfe\x00\x04\xff\xc2\xff\xc1", 11585), "error unexpected EOF"},
		{"jpg", jpegOf("\xfe\x00\x04\xff\xc0\xff\xc2", 6689), "error 6689 × 6689 pixels"},
		{"jpg", jpegOf("\x00\x07\xc0\xff\xd0\xff\xd7\xff\xff\xc2", 6689),
			"error 6689 × 6689 pixels"},
		{"jpg", strings.Replace(jpegs, "\x00\x02\x00\x03", "\x00\x00\x00\x03", 1), "error 3 × 0 pixels, must have 1"},
		{"jpg", strings.Replace(jpegs, "\x00\x02\x00\x03", "\x00\x02\x00\x00", 1), "error 0 × 2 pixels, must have 1"},
		{"a.png", "no image", "error " + image.ErrFormat.Error()}, {"gif", "", "error " + image.ErrFormat.Error()},
		{"cls", "one", "error " + strconv.ErrSyntax.Error()}, {"cls.gz", gz("one"), "error " + strconv.ErrSyntax.Error()},
		{"json", "{", "error unexpected EOF"}, {"json", "", "error there are 0 JSON values"},
		{"json", "1 2", "error there are 2 JSON values"}, {"json", "1 }", "error JSON value 2: "},
		{"jsonl", "1\n\n[2\n", "error JSON value 2: unexpected EOF"}, {"txt.gz", "not compressed", "error " + gzip.ErrHeader.Error()},
		{"gz", "", "error unexpected EOF"}, {"txt.gz", gz("text")[:20], "error unexpected EOF"},
		{"txt.gz", gz("text") + "x", "error EOF"},
		{"faiss.index x" + many + ".class", " \xca\xfe" + many, `error it must be an integer, is " \xca\xfexxx`},
	} {
		for _, name := range strings.Fields(c.names) {
			checkDecoded(t, name, c.data, c.want)
		}
	}
	checkDecoded(t, "", "x", "[]uint8 [120]")
	bomb := []byte(gz(strings.Repeat("0", 1000)))
	equal(t, "up to the limit", len(must(gunzip(bomb, 1000))), 1000)
	saysAll(t, errorOf(gunzip(bomb, 999)), "more than 999 bytes")
	// A bomb, also inside another, takes no memory before it is refused, and
	// neither does a false size.
	bomb = []byte(gz(strings.Repeat("0", 16<<20)))
	lies := gz("x")
	for _, c := range []struct {
		name, data, says string
		limit            int64
	}{
		{"gz", string(bomb), "more than 8388608 bytes", 8 << 20},
		{"gz.gz", gz(string(bomb)), "more than 8388608 bytes", 8<<20 + int64(len(bomb))},
		{"gz", lies[:len(lies)-4] + "\xff\xff\xff\x0f", gzip.ErrChecksum.Error(), 1 << 30},
	} {
		allocates(t, "a bomb", 1<<20, func() { saysAll(t, errorOf(decode(c.name, []byte(c.data), c.limit)), c.says) })
	}
}

// npy is an array file as NumPy writes it.
func npy(version byte, descr, fortran, shape, data string) string {
	header := fmt.Sprintf("{'descr': %s, 'fortran_order': %s, 'shape': %s, }", descr, fortran, shape)
	header += strings.Repeat(" ", 63-(len(header)+10)%64) + "\n"
	length := binary.LittleEndian.AppendUint16(nil, uint16(len(header)))
	if version > 1 {
		length = append(length, 0, 0)
	}
	return "\x93NUMPY" + string(version) + "\x00" + string(length) + header + data
}

// TestDecodeNumpy decodes arrays of all types, and refuses damaged ones without
// taking memory for what their headers say.
func TestDecodeNumpy(t *testing.T) {
	plain := func(version byte, descr, shape, data string) string {
		return npy(version, "'"+descr+"'", "False", shape, data)
	}
	sound := plain(1, "<f4", "(2,)", "12345678")
	for _, c := range []struct{ data, want string }{
		{plain(1, "<f4", "(2, 1)", "\x00\x00\x80\x3f\x00\x00\x00\x40"), "Tensor[float32] {[1 2] [2 1]}"},
		{plain(2, ">f8", "(1,)", "\xbf\xf0\x00\x00\x00\x00\x00\x00"), "Tensor[float64] {[-1] [1]}"},
		{plain(3, "|b1", "(3,)", "\x00\x01\x01"), "Tensor[bool] {[false true true] [3]}"},
		{plain(1, "|u1", "(1, 2, 1)", "\x01\xff"), "Tensor[uint8] {[1 255] [1 2 1]}"},
		{plain(1, "|i1", "()", "\xff"), "Tensor[int8] {[-1] []}"}, {plain(1, "<i2", "(1,)", "\x01\xff"), "Tensor[int16] {[-255] [1]}"},
		{plain(1, ">u2", "(1,)", "\x01\xff"), "Tensor[uint16] {[511] [1]}"},
		{plain(1, ">f2", "(3,)", "\x3c\x01\xfb\xff\x80\x00"), "Tensor[float32] {[1.0009766 -65504 -0] [3]}"},
		{plain(1, "<f2", "(3,)", "\x01\x80\xff\x03\x00\x04"), "Tensor[float32] {[-5.9604645e-08 6.097555e-05 6.1035156e-05] [3]}"},
		{plain(1, "<f2", "(3,)", "\x00\x7c\x00\xfc\x01\x7e"), "Tensor[float32] {[+Inf -Inf NaN] [3]}"},
		{plain(1, ">i4", "(1,)", "\xff\xff\xff\xfe"), "Tensor[int32] {[-2] [1]}"},
		{plain(1, "<u4", "(1,)", "\xff\xff\xff\xff"), "Tensor[uint32] {[4294967295] [1]}"},
		{plain(1, "<i8", "(1,)", "\xfe\xff\xff\xff\xff\xff\xff\xff"), "Tensor[int64] {[-2] [1]}"},
		{plain(1, ">u8", "(1,)", "\x00\x00\x00\x00\x00\x00\x00\x07"), "Tensor[uint64] {[7] [1]}"},
		{plain(1, "<f4", "(0, 5)", ""), "Tensor[float32] {[] [0 5]}"},
		{"", "error no npy file"}, {sound[:9], "error no npy file"}, {"x" + sound[1:], "error no npy file"},
		{plain(4, "<f4", "(2,)", "12345678"), "error no npy file of version 1 to 3"},
		{sound[:50], "error is truncated"}, {plain(2, "<f4", "(2,)", "")[:12], "error is truncated"},
		{sound[:len(sound)-1], "error 7 bytes"}, {sound + "x", "error 9 bytes"}, {sound[:len(sound)-8], "error 0 bytes"},
		{npy(1, "'<f4'", "True", "(2,)", "12345678"), "error fortran_order"},
		{npy(1, "[('a', '<f4')]", "False", "(1,)", "xxxx"), "error f4, f8"},
		{plain(1, "|O", "(2,)", "x"), "error f4, f8"}, {plain(1, "<f2", "(2,)", "xxx"), "error 3 bytes"},
		{plain(1, "<f4", "(1000000000000,)", "1234"), "error 4 bytes"}, {plain(1, "<f4", "(x,)", "1234"), "error not supported"},
		{plain(1, "<f4", "(4294967296, 4294967296)", ""), "error does not fit"},
		{plain(1, "<f8", "(2305843009213693952,)", ""), "error 0 bytes"}, {plain(1, "<f4", "(-1, -1)", "1234"), "error not supported"},
		{plain(1, "<f4", "(99999999999999999999,)", "1234"), "error does not fit"},
		{plain(2, "<f4", "("+strings.Repeat("9,", 20000)+")", "1234"), `error the shape "9,9,`},
	} {
		checkDecoded(t, "x.npy", c.data, c.want)
	}
}

// slowly hides the type of an image, so that only At is left.
type slowly struct{ image.Image }

// testImages returns an image of each type that ImageTensor knows, and of some
// that it does not, with random pixels.
func testImages(r image.Rectangle) (images []image.Image) {
	random := rand.NewChaCha8([32]byte{1})
	paletted := image.NewPaletted(r, nil)
	for i := range 256 {
		paletted.Palette = append(paletted.Palette, color.NRGBA{uint8(i), uint8(255 - i), uint8(i / 2), uint8(i * i)})
	}
	for _, img := range []interface {
		image.Image
		Set(x, y int, c color.Color)
	}{image.NewGray(r), image.NewRGBA(r), image.NewNRGBA(r), image.NewGray16(r), image.NewCMYK(r), paletted} {
		for i := range r.Dx() * r.Dy() { // with less alpha At loses the color
			var b [4]byte
			random.Read(b[:])
			c := color.NRGBA{b[0], b[1], b[2], 128 | b[3]}
			img.Set(r.Min.X+i%r.Dx(), r.Min.Y+i/r.Dx(), []color.Color{c, color.Transparent, color.Gray{c.R}}[i%3])
		}
		images = append(images, img)
	}
	opaque := image.NewRGBA(r)
	draw.Draw(opaque, r, images[4], r.Min, draw.Src)
	images = append(images, opaque)
	for ratio := image.YCbCrSubsampleRatio444; ratio <= image.YCbCrSubsampleRatio410; ratio++ {
		img := image.NewNYCbCrA(r, ratio)
		for _, plane := range [][]byte{img.Y, img.Cb, img.Cr, img.A} {
			random.Read(plane)
		}
		images = append(images, img, &img.YCbCr)
	}
	return images
}

// TestImageTensor compares images of the image package with the same ones read
// with At, at odd sizes and places, cropped and empty. Each tensor is made in
// the memory of the one before, and nothing else is allocated.
func TestImageTensor(t *testing.T) {
	var fast, slow Tensor[float32]
	rect := image.Rect
	for _, r := range []image.Rectangle{rect(0, 0, 7, 5), rect(-2, 1, 11, 10), rect(5, 9, 6, 10), rect(0, 0, 0, 3), {}} {
		for _, img := range testImages(r) {
			crop := img.(interface {
				SubImage(image.Rectangle) image.Image
			}).SubImage
			for _, img := range []image.Image{img, crop(r.Inset(1)), crop(rect(1, 3, 4, 5)), crop(rect(3, 2, 6, 5))} {
				fast, slow = ImageTensor(fast, img), ImageTensor(slow, slowly{img})
				what, rounds := fmt.Sprintf("%T %v", img, img.Bounds()), 0.0
				switch img.(type) {
				case *image.YCbCr, *image.NRGBA: // At rounds what it premultiplies
					rounds = 1.0 / 255
				}
				for i, v := range fast.Data {
					if math.Abs(float64(v-slow.Data[i])) > rounds {
						t.Fatalf("%s: element %d is %v, want %v", what, i, v, slow.Data[i])
					}
				}
				equal(t, what, fast.Shape, slow.Shape)
				equal(t, what, fast.Shape, []int{3, img.Bounds().Dy(), img.Bounds().Dx()})
				equal(t, what, len(fast.Data), elements(fast.Shape))
			}
		}
	}
	two := &image.NRGBA{Pix: []byte{0, 255, 0, 255, 255, 0, 255, 255}, Stride: 4, Rect: rect(0, 0, 1, 2)} // green over purple
	equal(t, "planes", ImageTensor(slow, two).Data, []float32{0, 1, 1, 0, 0, 1})
	first := ImageTensor(Tensor[float32]{}, testImages(image.Rect(0, 0, 4, 4))[0])
	equal(t, "in the memory of dst", &ImageTensor(first, image.NewGray(image.Rect(0, 0, 4, 4))).Data[0] == &first.Data[0], true)
	for _, img := range testImages(image.Rect(0, 0, 9, 9)) {
		equal(t, fmt.Sprintf("allocations for %T", img), testing.AllocsPerRun(10, func() { fast = ImageTensor(fast, img) }), 0)
	}
}

// TestImageTensorColors: alpha is left out, and the plain colors stay.
func TestImageTensorColors(t *testing.T) {
	empty := &image.NRGBA{Stride: 4, Rect: image.Rect(0, 0, 0, 3)}
	equal(t, "no columns", ImageTensor(Tensor[float32]{}, empty).Shape, []int{3, 3, 0})
	type rgb [3]float32
	one := image.Rect(0, 0, 1, 1)
	pixel := func(c color.Color) image.Image { // somewhere else, and with At only
		return slowly{&image.Paletted{Pix: []byte{0}, Rect: image.Rect(6, 7, 7, 8), Palette: color.Palette{c}}}
	}
	for _, c := range []struct {
		img  image.Image
		want rgb
	}{
		{pixel(color.White), rgb{1, 1, 1}}, {pixel(color.RGBA{}), rgb{0, 0, 0}},
		{pixel(color.RGBA{255, 51, 0, 255}), rgb{1, 0.2, 0}}, {pixel(color.RGBA{51, 102, 0, 102}), rgb{0.5, 1, 0}},
		// Images that are not valid, as if alpha had been left out; red that is
		// transparent; white; gray of 16 bits.
		{pixel(color.RGBA{200, 0, 0, 0}), rgb{1, 0, 0}}, {&image.RGBA{Pix: []byte{200, 0, 0, 0}, Stride: 4, Rect: one}, rgb{1, 0, 0}},
		{pixel(color.RGBA{200, 0, 0, 1}), rgb{1, 0, 0}}, {&image.RGBA{Pix: []byte{200, 0, 0, 1}, Stride: 4, Rect: one}, rgb{1, 0, 0}},
		{&image.NRGBA{Pix: []byte{255, 0, 0, 0}, Stride: 4, Rect: one}, rgb{1, 0, 0}},
		{&image.YCbCr{Y: []byte{255}, Cb: []byte{128}, Cr: []byte{128}, YStride: 1, CStride: 1, Rect: one}, rgb{1, 1, 1}},
		{&image.Gray16{Pix: []byte{0x33, 0x34}, Stride: 2, Rect: one}, rgb{13108.0 / 65535, 13108.0 / 65535, 13108.0 / 65535}},
	} {
		got := ImageTensor(Tensor[float32]{}, c.img)
		equal(t, fmt.Sprintf("shape of %T", c.img), got.Shape, []int{3, 1, 1})
		for i, v := range got.Data {
			if !(math.Abs(float64(v-c.want[i])) <= 0.5/0xffff) { // nor NaN
				t.Errorf("%T %v: %v, want %v", c.img, c.img, got.Data, c.want)
			}
		}
	}
}
