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
//	    the classic loader, file by file
//
// After the line "Second reading":
//
//	# More helpers
//	    for streams, and for shards
//	# The Examples
//	    one for each name; recipes stand in testdata/recipes
//	# The tests of the second reading
//	    files and folders; streams, in the same order
//	# The tests of tar shards
//	    the stream, the web, the index, the writer
//
// What the package costs, in time and memory, stands in bench_test.go, and what
// its texts promise in testdata/texts.
//
// The first half needs nothing of the second, because testdata/classic.go
// writes it with the classic loader. What it checks of streams, the second half
// adds by a variable: checkAsStream, dyingStreams, runFromStream.
//
// Each row of a table is a subtest where it has a name or can have one, so that
// it can be run alone: runRow names it. In an error that a row expects, " … "
// stands for any text.
//
// Who looks for the tests of a name finds them by the name of a test, or here:
//
//	New, NewBatchFunc           TestNotebook, TestFailures, TestBadOptions
//	Slice, Func, Rows, Pairs,
//	Concat, Subset, Transform   TestDatasets, TestRows
//	Split                       TestDatasets, TestTorch
//	Sequential, Random          TestGoldenOrders, TestRandomIsBijection
//	RandomWithReplacement,
//	Weighted                    TestReplacement
//	Batches                     TestSamplerOrderIsBatchOrder
//	TorchRandom                 TestTorch
//	List, Stack, Pad, Padded,
//	CollatePair                 TestStackAndPad, TestRecycle
//	WithSeed                    TestRand, TestRandInMap
//	Filter, Take, Repeat,
//	Cycle, Chain, Zip, Batch,
//	Unbatch, Prefetch, FromSeq,
//	Indices, StreamOf           TestStreams, and all of stages
//	ErrCursor                   TestRefusedCursors
//	NewTarWriter                TestTarWriter
//	NewStream, NewStage         TestOneForOne, TestRanks
//	OpenTar                     TestTarDataset
//	deliver, nextTask           TestContextEnds, TestEverySchedule
//	markDone, setSpot           TestUnorderedResume
//	keepTwo                     TestOrderIsMadeOnce
//	dueOf, noteMove             TestShuffleDelays, TestSavedCursors
//	checkReread, compareSource  TestChangedSources, TestJoinedSources
//	checkAnswer, sendRequest    TestWeb
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
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"io/fs"
	"iter"
	"log"
	"math"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"testing/synctest"
	"time"
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
	all := make([]T, data.Len())
	for i := range all {
		v, err := data.Get(t.Context(), i)
		failIf(t, err != nil, "sample %d: %v", i, err)
		all[i] = v
	}
	return all
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
			all = append(all, map[bool]string{false: "error ",
				true: "refused "}[errors.Is(err, ErrCursor)]+text)
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
// parts, in which " … " stands between texts that need not be neighbours.
func saysAll(t testing.TB, err error, parts ...string) {
	t.Helper()
	failIf(t, err == nil, "no error, want one that says %q", parts)
	for _, part := range strings.Split(strings.Join(parts, " … "), " … ") {
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
		t.Errorf("%s: %d bytes allocated, want at most %d", what,
			after.TotalAlloc-before.TotalAlloc, most)
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
	all, latest, waiting := inBubbles.FindAllSubmatch(stacks[:runtime.Stack(stacks, true)], -1), 0,
		""
	for _, match := range all {
		// the goroutines of bubbles before may still wait
		latest = max(latest, must(strconv.Atoi(string(match[2]))))
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
var inBubbles = regexp.MustCompile(`(goroutine \d+ \[.*) \(durable\), synctest bubble (\d+)\]:` +
	`\n(?:.+\n)*?.*\b((?:dataset|sampler|batch|worker|dataloader|tar|dataloader_test)\.go:\d+)`)

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

// A loading is a loader, and what it yields in epoch 2, in words. "error in
// batch 1" stands for "error dataloader: epoch 2, batch 1".
type loading struct {
	name    string
	data    Dataset[int]
	collate Collate[int, []int] // nil means List
	opts    Options
	want    string
}

// inFull returns want with the whole errors.
func (l loading) inFull() string {
	return strings.ReplaceAll(l.want, "error in batch", "error dataloader: epoch 2, batch")
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
		equal(t, what, fmt.Sprint(got), l.inFull())
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
		equal(t, what+": as a stream", fmt.Sprint(checkAsStream(t, loader, 2)), l.inFull())
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
		return (Rand(ctx).Int() ^ Rand(ctx).Int()) * (Rand(WithSeed(ctx,
			1)).Int() ^ Rand(WithSeed(ctx, 2)).Int()), nil
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
	features, err := Rows(Tensor[float32]{Data: make([]float32, 2000), Shape: []int{20, 100}})
	if err != nil {
		log.Fatal(err)
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
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.First.Shape, batch.Second, err)
	}
	// Output:
	// [8 100] [0 1 2 0 1 2 0 1] <nil>
	// [8 100] [2 0 1 2 0 1 2 0] <nil>
	// [4 100] [1 2 0 1] <nil>
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
	equal(t, "rows of a vector", fmt.Sprint(values(t,
		must(Rows(Tensor[int]{[]int{1, 2}, []int{2}})))), "[{[1] []} {[2] []}]")
	equal(t, "empty rows", fmt.Sprint(values(t, must(Rows(Tensor[int]{nil, []int{2, 0}})))),
		"[{[] [0]} {[] [0]}]")
}

// TestDatasets checks what each adapter makes of small data sets, and that all
// of them refuse an index outside.
func TestDatasets(t *testing.T) {
	letters := Slice[string]{"a", "b", "c", "d", "e"}
	indices := []int{4, 0, 0}
	subset := must(Subset(letters, indices))
	indices[0] = 1 // Subset has a copy
	equal(t, "Subset", fmt.Sprint(values(t, subset)), "[e a a]")
	equal(t, "Pairs", fmt.Sprint(values(t, must(Pairs(letters, numbers(5))))),
		"[{a 0} {b 1} {c 2} {d 3} {e 4}]")
	parts := Concat[string](Slice[string]{}, letters[:2], Slice[string]{}, letters[2:],
		Slice[string]{})
	equal(t, "Concat", values(t, parts), []string(letters))
	saysAll(t, panicOf(func() { Concat(numbers(math.MaxInt), numbers(1)) }),
		"Concat: the length of part 1 is negative, or the sum")
	equal(t, "Concat of nothing", fmt.Sprint(values(t, Concat[int]())), "[]")
	square := func(_ context.Context, i int) (string, error) { return strconv.Itoa(i * i), nil }
	equal(t, "Transform", fmt.Sprint(values(t, Transform(numbers(3), square))), "[0 1 4]")
	failed := Transform(failing(2, 0), func(_ context.Context, i int) (int, error) {
		return i, errors.New("not reached")
	})
	equal(t, "Transform of a failed sample", errorOf(failed.Get(t.Context(), 0)), errBad)
	equal(t, "Pairs of a failed sample", errorOf(must(Pairs(failing(1, 0),
		numbers(1))).Get(t.Context(), 0)), errBad)
	for _, i := range []int{-1, 3} {
		part := must(Subset(numbers(9), []int{1, 2, 3}))
		for _, data := range []Dataset[int]{make(Slice[int], 3), numbers(3), Cache(numbers(3)),
			part, Concat(numbers(1), numbers(2))} {
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
				if v, err := data.Get(t.Context(), k%7); err == nil && v != k%7*(k%7) ||
					err != nil && err != errBad {
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
		{"batch sampler", augmented(), nil, Options{BatchSampler: Batches(Sequential(24), 4,
			false)}, ""},
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
	equal(t, "outside a loader", Rand(outside).Int(),
		rand.New(rand.NewPCG(hash(5, 0), hash(0, 0))).Int())
	equal(t, "one in another", Rand(WithSeed(outside, 5)).Int() == Rand(WithSeed(t.Context(),
		5)).Int(), false)
	cached, late := newLoader(t, Cache(augmented()), shuffled),
		newLoader(t, Cache(augmented()), shuffled)
	first, third := samples(t, cached, 0), samples(t, cached, 3)
	equal(t, "first fetched in epoch 3", samples(t, late, 3), third)
	equal(t, "fetched before", samples(t, cached, 0), first)
}

// TestWorker checks that all workers load, that each knows its number, and that
// nobody else has one.
func TestWorker(t *testing.T) {
	eachWorkers(t, []int{0, 1, 2, 3}, func(t *testing.T, workers int) {
		data := Transform(&probe{n: 12, takes: always(time.Second)},
			func(ctx context.Context, _ int) (int, error) {
				return Worker(WithSeed(ctx, 1)), nil
			})
		loader, want := newLoader(t, data, Options{Workers: workers}),
			[][]int{{-1}, {0}, {0, 1}, {0, 1, 2}}[workers]
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
		"Rand … from no loader … pass on the context that Get was given … WithSeed": func() {
			Rand(t.Context())
		},
		"CollatePair: a Collate is nil": func() {
			CollatePair[int, int, []int, []int](List[int], nil)
		},
		"CollatePair … Collate is nil": func() {
			CollatePair[int, int, []int, []int](nil, List[int])
		},
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
		{errorOf(Split(numbers(maxTorch+1), 1)),
			"Split … 214748364 samples, may have at most 214748363"},
		{rows(), "Rows … no dimension"},
		{rows(2, 2), "Rows … 3 elements … [2 2]"},
		{rows(-3, -1), "Rows … 3 elements … [-3 -1]"},
		{rows(5, wraps), "Rows … 3 elements … [5 "},
	})
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
					t.Fatalf("n %d, seed %d: position %d has %d, which is outside or comes twice",
						n, key, pos, i)
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
			failIf(t, i >= n || back != pos, "n %d: position %d has %d, which is position %d's", n,
				pos, i, back)
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
	t.Parallel()
	for _, n := range []int{3, 4, 5, 10, 33, 100, 300, 1000, maxTable, maxTable + 1, 1 << 16,
		65537, 1281167} {
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
				"seeds": func(key int) func(pos int) int {
					return Random(n, uint64(key)).Order(0)
				},
				"epochs": Random(n, 0).Order,
			} {
				for _, pair := range [][2]int{{0, 1}, {1, 2}, {0, n / 2}, {n - 2, n - 1}} {
					counts := make([]int, len(weights))
					for key := range keys {
						at := order(key)
						counts[bin(at(pair[0]))*bins+bin(at(pair[1]))]++
					}
					z := zScore(t, counts, weights...)
					failIf(t, math.Abs(z) > 4, "over %s positions %v miss by %.1f deviations",
						over, pair, z)
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
		"orders of (seed, epoch) and (seed+1, epoch-1) agree at %d positions, want 100, ± 40",
		agree)
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
		"[5 0 2 6 3 8 9 4 1 7]": positions(Random(10, 0), 0),
		"[2 6 7 0 9 1 4 5 8 3]": positions(Random(10, 0), 1),
		"[2 0 9 7 1 5 4 6 8 3]": positions(Random(10, 1), 0),
		// of maxTable positions
		"[2542 955 2075]":                positions(Random(4096, 1), 0)[:3],
		"[2872 415 2478]":                positions(Random(4097, 1), 0)[:3],
		"[70077 24005 18452 1604 34750]": positions(Random(131073, 0), 0)[:5],
		"[11 5 1 7]":                     []int{f.at(7), f.at(11), f.at(5), f.at(1)},
		"[5 1 7]":                        []int{g.at(7), g.at(5), g.at(1)},
		"[7 3 6 9 6 1 5 7 5 6]":          positions(RandomWithReplacement(10, 10, 0), 0),
		"[1 1 4 5 4 3]":                  positions(must(Weighted(weights, 6, true, 0)), 0),
		"[1 4 5 0 2 3]":                  positions(must(Weighted(weights, 6, false, 0)), 0),
		"[[3 2] [0 6] [5] [7 4]]":        [][]int{buckets(0), buckets(1), buckets(2), buckets(3)},
		"[553 203]":                      batches(t, newLoader(t, drawn, Options{Seed: 9}), 2)[7],
		"Weighted(6 of 6, weights #dc404c201882b333, replace false, seed 0), version 2": must(
			Weighted(weights, 6, false, 0)),
	} {
		runRow(t, want, func(t *testing.T) {
			equal(t, "an order that has changed", fmt.Sprint(got), want)
		})
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
				equal(t, fmt.Sprintf("%+v", opts),
					samples(t, newLoader(t, numbers(c.N), opts), c.Epoch), want)
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

// TestResize checks that a resized sampler walks on through the epochs of the
// one inside.
func TestResize(t *testing.T) {
	s, endless := Random(7, 1), []int{}
	for epoch := range 30 {
		endless = append(endless, positions(s, epoch)...)
	}
	for count := 1; count <= 30; count++ {
		for epoch := range 6 {
			equal(t, fmt.Sprint(count), positions(Resize(s, count), epoch),
				endless[epoch*count:(epoch+1)*count])
		}
	}
	made := 0
	border := Resize(sampler{n: 7, order: func(epoch int) func(int) int {
		made++
		return s.Order(epoch)
	}}, 10).Order(0)
	for pos := range 10 { // two workers, on either side of the border between two passes
		border(6 + pos%2)
	}
	equal(t, "orders that are made", made, 2)
	equal(t, "of nothing", Resize(OrderFunc(0, func(int) []int { return nil }), 0).Len(), 0)
	far := errorOf(newLoader(t, numbers(5), Options{Sampler: Resize(Sequential(5),
		20)}).Batch(t.Context(), math.MaxInt/3, 0))
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
	for _, weights := range [][]float64{{0, 1, 0, 3}, {1e308, 1e308, 5e307}, {1e-300, 3e-300},
		{0, 5}, {1, 1e-9, 1, 0, 1}, same} {
		fits(positions(must(Weighted(weights, 100000, true, 3)), 0), weights...)
	}
	var pairs []int // as one number
	for epoch := range 20000 {
		drawn := positions(must(Weighted([]float64{2, 0, 6, 1}, 2, false, 2)), epoch)
		pairs = append(pairs, drawn[0]*4+drawn[1])
	}
	fits(pairs, 0, 0, 2./9*6/7, 2./9*1/7, 0, 0, 0, 0, 6./9*2/3, 0, 0, 6./9*1/3, 1./9*2/8, 0,
		1./9*6/8, 0)
	equal(t, "all", sorted(positions(must(Weighted([]float64{1, 0, 1e-300, 1e300}, 3, false, 2)),
		3)), []int{0, 2, 3})
	step := uint64(golden) // with the seed -2 × step random number 1 is 0
	equal(t, "the first, with a waiting time of 0",
		drawShortest([]float64{1, 1, 1}, 1, 3)(-step-step)(0), 1)
	for n, spread := range map[int]float64{1: 0, 300: 1e-13, 2000: 30, 3000: 1e-12, 5000: 1400} {
		weights, sums, times, order, sum := make([]float64, n), make([]float64, n),
			make([]float64, n), upTo(n), 0.0
		for i := range n {
			weights[i] = math.Exp(700 - spread*float64(i*7919%n)/float64(n))
			sum += weights[i] / weights[0] // the largest
			sums[i], times[i] = sum, -math.Log(1-unit(counter(hash(0, 0, uint64(n)),
				uint64(i))))/(weights[i]/weights[0])
		}
		find := newGuide(sums)
		for i, s := range slices.Repeat(sums, 3) {
			// below s, s, above s; with small spreads at borders of parts
			x := math.Nextafter(s, s*float64(i/n))
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
	equal(t, "whether other weights have the same description", fmt.Sprint(a) == fmt.Sprint(b),
		false)
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
			longest := lengths[slices.MaxFunc(batch,
				func(i, j int) int { return lengths[i] - lengths[j] })]
			all, longests, padded = append(all, batch), append(longests, longest),
				padded+longest*len(batch)
			failIf(t, longest*len(batch) > budget, "batch %d has %d samples of at most %d", k,
				len(batch), longest)
		}
		equal(t, "all samples", sorted(slices.Concat(all...)), upTo(len(lengths)))
		waste := 1 - float64(total)/float64(padded)
		failIf(t, waste > .1, "%.0f %% of the batches is padding", 100*waste)
		slices.SortFunc(all, slices.Compare)
		contents[fmt.Sprint(all)], shapes[fmt.Sprint(longests)] = true, true
	}
	equal(t, "different orders of batches, and batches", []int{len(shapes), len(contents)},
		[]int{3, 3})
	other := must(Buckets(append(slices.Clone(lengths[1:]), 3), budget, 5))
	equal(t, "whether other lengths have the same description", fmt.Sprint(s) == fmt.Sprint(other),
		false)
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
		n, count, size, tail = int(uint(n)%200), 1+int(uint(count)%9), 1+int(uint(size)%20),
			int(uint(tail)%3)
		from = int(uint(from) % uint(n+1))
		opts := Options{BatchSize: size, DropLast: dropLast, Rank: Rank{0, count}, Tail: Tail(tail)}
		if noBatch(n, opts) {
			saysAll(t, errorOf(New(numbers(n), List[int], opts)), "leave no batch")
			return
		}
		for opts.Rank.Index = range count {
			loader, got := newLoader(t, numbers(n), opts), [][]int{}
			at := Cursor{Epoch: 5, Pos: from,
				State: map[string]string{"by": fmt.Sprintf("Sequential(%d)", n)}}
			want := at
			for batch := range loader.Run(t.Context(), &at) {
				got = append(got, batch)
				want.Pos = min(n, from+len(got)*count*size)
				equal(t, "the cursor after a step", at.String(), want.String())
				if from == 0 && len(got) < loader.Len() {
					equal(t, "the cursor by At", loader.At(3, 2*loader.Len()+len(got)).String(),
						want.String())
				}
			}
			equal(t, fmt.Sprintf("%d from %d, %+v", n, from, opts), got,
				expect(upTo(n), from, opts))
			equal(t, "the next epoch, if one has batches", loader.At(5, loader.Len()),
				Cursor{Epoch: 5 + min(1, loader.Len())})
		}
	})
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
		got += fmt.Sprint(collect(t, newLoader(t, numbers(10),
			Options{Rank: Rank{rank, 3}}).Run(t.Context(), ptr(at))), " ")
	}
	equal(t, "the rest of the epoch on three ranks", got, "[[4] [7]] [[5] [8]] [[6] [9]] ")
	t.Logf("batches of 1, a checkpoint of four ranks after one step, %v, continued by three: %s",
		at, got)
}

// TestRankFromEnv checks the variables of each launcher, which of them comes
// first, and numbers that make no sense.
func TestRankFromEnv(t *testing.T) {
	all := strings.Fields("RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE " +
		"FLUX_TASK_RANK FLUX_JOB_SIZE " +
		"PMI_RANK PMI_SIZE SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS JOB_COMPLETION_INDEX")
	cases := [][2]string{
		{"", "no error, {0 0}"},
		{"WORLD_SIZE=1", "no error, {0 0}"},
		{"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=4 PMI_RANK=2 PMI_SIZE=5", "no error, {1 4}"},
		{"FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1 PMI_RANK=3 PMI_SIZE=4",
			"FLUX_JOB_SIZE is 1, and PMI_RANK is 3; unset FLUX_TASK_RANK and FLUX_JOB_SIZE if"},
		{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", "WORLD_SIZE is 2, and LOCAL_RANK is 2; unset RANK"},
		{"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=16", "no error, {3 8}"},
		// mpirun in an sbatch script
		{"SLURM_PROCID=0 SLURM_NTASKS=8 PMI_RANK=1 PMI_SIZE=3", "no error, {1 3}"},
		{"SLURM_PROCID=0 SLURM_NTASKS=8",
			`SLURM_PROCID is "0" and SLURM_STEP_NUM_TASKS is ""; the second must be the number ` +
				`of processes, the first 0 to one less; start it with srun; in a container, pass`},
		// in a container, to which only this was passed on
		{"SLURM_PROCID=3", `SLURM_PROCID is "3"`},
		{"SLURM_PROCID=0 SLURM_NTASKS=1", "no error, {0 0}"},
		{"SLURM_PROCID=0 JOB_COMPLETION_INDEX=5 WORLD_SIZE=6", "no error, {5 6}"},
		{"RANK=0 WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 FLUX_TASK_RANK=2 " +
			"FLUX_JOB_SIZE=4", "no error, {0 4}"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 FLUX_TASK_RANK=2 FLUX_JOB_SIZE=4",
			"no error, {1 3}"},
		{"RANK= WORLD_SIZE=4", `RANK is "" and WORLD_SIZE is "4"`},
		{"RANK=2", `RANK is "2" and WORLD_SIZE is ""`},
		{"WORLD_SIZE=4", `WORLD_SIZE is "4" but RANK is not set`},
		{"RANK=4 WORLD_SIZE=4", `RANK is "4" and WORLD_SIZE is "4"`},
		{"RANK=-1 WORLD_SIZE=4", `RANK is "-1"`},

		// In a step of Slurm with several processes. What mpirun and Flux set
		// is that of the step which started their daemons.
		{"RANK=0 WORLD_SIZE=1 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4",
			"WORLD_SIZE is 1, and SLURM_STEP_NUM_TASKS is 4; unset RANK and WORLD_SIZE if they " +
				"are left over, or SLURM_STEP_NUM_TASKS if"},
		{"RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4",
			"WORLD_SIZE is 1, and OMPI_COMM_WORLD_SIZE is 4; unset RANK and WORLD_SIZE if"},
		{"RANK=0 WORLD_SIZE=1 FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2",
			"WORLD_SIZE is 1, and FLUX_JOB_SIZE is 2"},
		{"RANK=0 WORLD_SIZE=1 PMI_RANK=1 PMI_SIZE=2", "WORLD_SIZE is 1, and PMI_SIZE is 2"},
		// torchrun with two processes, started by mpirun on each of four nodes
		{"RANK=7 WORLD_SIZE=8 LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4",
			"no error, {7 8}"},
		{"RANK=5 WORLD_SIZE=8 JOB_COMPLETION_INDEX=2", "no error, {5 8}"},
		{"PMI_RANK=0 PMI_SIZE=1 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4",
			"PMI_SIZE is 1, and SLURM_STEP_NUM_TASKS is 4; unset PMI_RANK"},
		// torchrun on four nodes
		{"RANK=5 WORLD_SIZE=8 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4", "no error, {5 8}"},
		{"RANK=3 WORLD_SIZE=4 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4", "no error, {3 4}"},
		{"PMI_RANK=3 PMI_SIZE=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "no error, {3 4}"},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0 SLURM_PROCID=0 " +
			"SLURM_STEP_NUM_TASKS=2", "no error, {0 1}"},
		{"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=3",
			"no error, {1 2}"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1", "no error, {1 2}"},
	}
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasSuffix(name, "RANK") {
			all = append(all, name)
		}
	}
	for _, name := range strings.Fields("PMIX_RANK LOCAL_RANK SKYPILOT_NODE_RANK PMI_ID " +
		"PALS_RANKID MPI_RANKID MPI_LOCALRANKID ALPS_APP_PE LSF_PM_TASKID VC_TASK_INDEX " +
		"LWS_WORKER_INDEX AWS_BATCH_JOB_NODE_INDEX TPU_WORKER_ID CLOUD_TPU_TASK_ID " +
		"JAX_PROCESS_ID DMLC_WORKER_ID PADDLE_TRAINER_ID") {
		all, cases = append(all, name), append(cases, [2]string{name + "=0", "no error, {0 0}"},
			[2]string{name + "=1", name +
				" is 1, and the number of processes is not known; set RANK and WORLD_SIZE"})
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

// TestNestedLaunchers checks what five launchers and a local rank may have set,
// each or none of them: the first one decides, unless a rank does not fit its
// count or, if what it has set may be left over, its count is below another.
func TestNestedLaunchers(t *testing.T) {
	pairs := [][2]string{{"RANK", "WORLD_SIZE"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
		{"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}, {"PMI_RANK", "PMI_SIZE"},
		{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}, {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}}
	values := []Rank{{}, {0, 1}, {0, 2}, {2, 3}}
	for _, name := range slices.Concat([]string{"JOB_COMPLETION_INDEX"}, otherRanks()) {
		t.Setenv(name, "") // so that it is put back
		must(0, os.Unsetenv(name))
	}
	for k := range 1 << (2 * len(pairs)) {
		var want, greatest Rank // of the ranks that are checked, of the counts
		first := -1
		for i, names := range pairs {
			v := values[k>>(2*i)&3]
			if v.Count == 0 {
				must(0, errors.Join(os.Unsetenv(names[0]), os.Unsetenv(names[1])))
				continue
			}
			t.Setenv(names[0], strconv.Itoa(v.Index))
			t.Setenv(names[1], strconv.Itoa(v.Count))
			if first < 0 && i < 5 {
				first, want = i, v
			}
			if i != 4 {
				greatest.Index = max(greatest.Index, v.Index)
			}
			if i < 5 {
				greatest.Count = max(greatest.Count, v.Count)
			}
		}
		fits := greatest.Index < max(want.Count, 1) &&
			(first != 0 && first != 3 || greatest.Count <= want.Count)
		rank, err := RankFromEnv()
		failIf(t, (err == nil) != fits || fits && rank != want,
			"%d: got %v, %v, want %v, fits: %t", k, rank, err, want, fits)
	}
}

// TestBadSamplers checks that arguments that can never be right are refused.
func TestBadSamplers(t *testing.T) {
	weighted := func(count int, replace bool, weights ...float64) error {
		return errorOf(Weighted(weights, count, replace, 0))
	}
	buckets := func(budget int, lengths ...int) error {
		return errorOf(Buckets(lengths, budget, 0))
	}
	panics(t, map[string]func(){
		"Sequential … -1":                     func() { Sequential(-1) },
		"Random … -1":                         func() { Random(-1, 0) },
		"TorchRandom … -1":                    func() { TorchRandom(-1, 0) },
		"TorchRandom … 214748364 … 214748363": func() { TorchRandom(maxTorch+1, 0) },
		"RandomWithReplacement … -1": func() {
			RandomWithReplacement(-1, 1, 0)
		},
		"RandomWithReplacement … count is 0 … positive": func() { RandomWithReplacement(3, 0, 0) },
		"RandomWithReplacement: count is -1": func() {
			RandomWithReplacement(3, -1, 0)
		},
		"RandomWithReplacement: count is 1 … no samples": func() { RandomWithReplacement(0, 1, 0) },
		"OrderFunc … nil":                func() { OrderFunc(1, nil) },
		"OrderFunc … -1":                 func() { OrderFunc(-1, func(int) []int { return nil }) },
		"Resize … nil":                   func() { Resize(nil, 1) },
		"Resize … count is 0":            func() { Resize(Sequential(3), 0) },
		"Batches … size is 0 … positive": func() { Batches(Sequential(3), 0, false) },
		"Batches … nil":                  func() { Batches(nil, 1, false) },
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
	for _, other := range []tensor{{one, one}, {[]int{1, 2, 3}, []int{3}},
		{[]int{1, 2}, []int{2, 1}}, {one, []int{2}}} {
		saysAll(t, errorOf(Stack(tensor{}, []tensor{two, other})), "sample 1", "shape [2]",
			fmt.Sprint(other.Shape))
	}
	saysAll(t, errorOf(Stack(tensor{}, []tensor{{Data: []int{1, 2}}})), "sample 0", "shape []",
		"2 elements; set Shape")
	saysAll(t, errorOf(Stack(tensor{}, nil)), "no samples")
	pad := Pad(-1)
	ragged := must(pad(Padded[int]{}, [][]int{{1}, {2, 3, 4}, {}}))
	equal(t, "three", fmt.Sprint(ragged), "{{[1 -1 -1 2 3 4 -1 -1 -1] [3 3]} [1 3 0]}")
	equal(t, "one, in used memory", fmt.Sprint(must(pad(ragged, [][]int{{7, 8}}))),
		"{{[7 8] [1 2]} [2]}")
	equal(t, "empty ones", fmt.Sprint(must(pad(ragged, [][]int{{}, {}}))), "{{[] [2 0]} [0 0]}")
	pairs := CollatePair(Stack[int], func(dst int, _ []int) (int, error) { return dst, errBad })
	for want, data := range map[string][]int{"the first of each pair: Stack": {1, 2},
		"the second of each pair: bad sample": one} {
		saysAll(t, errorOf(pairs(Pair[tensor, int]{},
			[]Pair[tensor, int]{{First: tensor{Data: data}}})), want)
	}
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
								// blocks for ever if there is no room and
								// nobody receives
								results <- k
								blocked.Add(-1)
							}
						}()
					}
					<-results // the loop is left after one
				})
			})
			equal(t, "workers blocked", int(blocked.Load()), want)
			equal(t, "whether goroutines remain", err != nil, want > 0)
			t.Logf("room for %d results, 5 tasks, 3 workers, a break after one result: %d "+
				"workers are blocked for ever", room, want)
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
		data := Func(20, func(ctx context.Context, i int) (int, error) {
			time.Sleep(takes(i))
			return 1000*generators[Worker(ctx)].IntN(1000) + Rand(ctx).IntN(1000), nil
		})
		inBubble(t, func(t *testing.T) {
			fourth := samples(t, newLoader(t, data, Options{Workers: 3}), 0)[4]
			theirs, ours = append(theirs, fourth/1000), append(ours, fourth%1000)
		})
	}
	differ := func(numbers []int) bool { return slices.Min(numbers) != slices.Max(numbers) }
	equal(t, "whether numbers differ with a generator per worker", differ(theirs), true)
	equal(t, "whether numbers differ with Rand", differ(ours), false)
	t.Log("sample 4 in ten runs, with a generator per worker:", theirs, "with Rand:", ours)
}

// TestContextEnds checks that the loop ends when its context does, with the
// cause, and does not go through the rest of an epoch, which is endless here.
func TestContextEnds(t *testing.T) {
	eachWorkers(t, []int{0, 1, 3}, func(t *testing.T, workers int) {
		loader := newLoader(t, numbers(math.MaxInt/4), Options{Workers: workers})
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		got := []string{}
		for batch, err := range loader.Epoch(ctx, 0) {
			got = append(got, outcomes(one(batch, err))...)
			cancel(errBad)
		}
		equal(t, "outcomes", got, []string{"[0]", "error bad sample"})
	})
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
//	The loop does not wait if a result is ready that it may hand over: in order
//	that of task number taken, out of order any.
//	After the end, which is a break or that of the context, no task begins.
//	When the loop has returned, no task runs. Without an end all results have
//	been taken: each once, in order if ordered.
//
// Between two events the goroutines take their steps in the order that the Go
// scheduler chooses. Other orders are not played, and the context ends only
// while all goroutines wait. So three hangs are not seen: a worker that drops
// its slot, or returns, when the context has ended, and a reader that then
// sends no end. TestEnds notices all three.
func TestEverySchedule(t *testing.T) {
	t.Parallel()
	// workers, window, tasks
	rows := [][3]int{{0, 0, 3}, {1, 1, 3}, {1, 2, 4}, {2, 2, 3}, {2, 2, 5}, {3, 3, 4}, {3, 4, 5}}
	if testing.Short() {
		rows = rows[:len(rows)-1]
	}
	orders := []string{"in order", "out of order", "from a stream"}
	if runFromStream == nil {
		orders = orders[:2]
	}
	for _, row := range rows {
		for _, order := range orders {
			runRow(t, fmt.Sprintf("%d workers, window %d, %d tasks, %s", row[0], row[1], row[2],
				order), func(t *testing.T) {
				// worst has the shortest schedule that goes wrong
				worst, played := &world{schedule: make([]string, 99)}, 0
				for queue := [][]string{nil}; len(queue) > 0; queue, played = queue[1:], played+1 {
					w := &world{workers: row[0], window: row[1], all: row[2], order: order,
						schedule: queue[0]}
					w.most = len(worst.schedule)
					leak := panicOf(func() { synctest.Test(t, w.play) })
					if w.wrong = cmp.Or(w.wrong, leak); w.wrong != nil && len(w.schedule) < w.most {
						worst = w
					}
					queue = append(queue, w.others...)
				}
				schedule := strings.Join(append([]string{"the loop begins"}, worst.schedule...),
					", ")
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
	// "in order", "out of order" or, with a reader and in order, "from a
	// stream"
	order    string
	most     int        // fewer events than these are played
	schedule []string   // the events
	others   [][]string // schedules that begin like this one, to be played, too

	events            [][]string    // that each task, the body, and the end of the context wait for
	happened          []chan string // tells each of them which event has happened
	sent, begun, done atomic.Int64
	// mustBegin is how many tasks must have begun, and after the end no more
	taken, mustBegin int
	ready            []bool // the results that have not been taken
	ended, returned  bool   // by a break or the context; the loop
	wrong, panicked  error
}

// play plays the schedule, and after it the first event that is possible, again
// and again.
func (w *world) play(t *testing.T) {
	w.events, w.happened, w.ready = make([][]string, w.all+2), make([]chan string, w.all+2),
		make([]bool, w.all+1)
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
		errorIf(w.returned && !w.ended && w.taken < w.all,
			"the loop has returned with %d of %d results", w.taken, w.all))
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
		w.wrong = errorIf(!w.ready[k] || w.order != "out of order" && k != w.taken,
			"the body takes result %d out of turn", k)
		w.ready[k] = false
		w.taken++
		return w.wait(over, w.all, "the body goes on", "the body breaks") == "the body goes on"
	}
	run := e.run
	if w.order == "from a stream" && w.workers > 0 {
		run = func(ctx context.Context, body func(int) bool) {
			runFromStream(ctx, w, e, slots, body)
		}
	}
	w.panicked = panicOf(func() { run(ctx, body) })
}

// runFromStream runs the engine of a world with a reader. The second reading
// sets it.
var runFromStream func(ctx context.Context, w *world, e engine, slots []Item[int],
	body func(slot int) bool)

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
	for name, die := range map[string]func(){
		"panic: EOF": func() { panic(io.EOF) }, goexit: runtime.Goexit,
	} {
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
			load := func(_ context.Context, dst, indices []int) ([]int, error) {
				return collate(dst, indices)
			}
			order := sampler{n: 6, name: "dying", order: func(int) func(int) int { return at(2) }}
			batchSampler := batchSampler{n: 3, name: "dying", batches: func(int) func(int) []int {
				return func(k int) []int { return []int{2 * at(1)(k), 2*k + 1} }
			}}
			dying := func(*SampleError) error { die(); return nil }
			inBatch1, inSample2 := "[[0 1] error in batch 1: "+name+" [4 5]]",
				"[[0 1] error in batch 1, sample 2: "+name+" [4 5]]"
			least, dropped := 0, "[[0 1] [3] [4 5]]"
			// without workers it ends the caller; OnError does not decide about
			// a sample that ends the goroutine
			if name == goexit {
				least, dropped = 1, inSample2
			}
			all := []loading{
				{"Get", get, nil, Options{BatchSize: 2}, inSample2},
				{"Get, dropped", get, nil, Options{BatchSize: 2, OnError: dropBad}, dropped},
				{"load", atOnce{n: 6, load: load}, nil, Options{BatchSize: 2, OnError: dropBad},
					inBatch1},
				{"collate", numbers(6), collate, Options{BatchSize: 2}, inBatch1},
				{"sampler, after a bad sample", failing(6, 1), nil,
					Options{BatchSize: 2, Sampler: order},
					strings.Replace(inBatch1, "[0 1]", "error in batch 0, sample 1: bad sample",
						1)},
				{"batch sampler", numbers(6), nil, Options{BatchSampler: batchSampler}, inBatch1},
				{"OnError", failing(6, 2), nil, Options{BatchSize: 2, OnError: dying},
					strings.Replace(inSample2, name, "OnError: "+name, 1)},
			}
			// OnError runs in the loop's goroutine, which a Goexit would end
			for _, l := range all[:len(all)-least] {
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
				opts, traced := Options{Workers: workers},
					Options{Workers: workers, Trace: func(Timing) { die() }}
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
					saysAll(t, err, "panic: ", says,
						fmt.Sprintf(" (dataloader_test.go:%d)", line+2+k))
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
	equal(t, "one line", (&PanicError{Value: errors.Join(errBad, io.EOF)}).Error(),
		"panic: bad sample; EOF")
	outside := newLoader(t, numbers(12), Options{Sampler: sampler{n: 12, name: "short",
		order: Random(10, 1).Order}})
	short := newLoader(t, numbers(2), Options{Sampler: OrderFunc(2, func(int) []int {
		return nil
	})})
	saysAll(t, errorOf(outside.Batch(t.Context(), 0, 11)),
		"dataloader: epoch 0, batch 11: panic: runtime error: index out of range [11] with "+
			"length 10")
	saysAll(t, errorOf(short.Batch(t.Context(), 0, 0)),
		"dataloader: epoch 0: the sampler: panic: OrderFunc: the order of epoch 0 has 0 "+
			"positions, must have 2")
}

// dyingStreams returns the last errors of streams in which die is called. The
// second reading sets it.
var dyingStreams func(t *testing.T, workers int, die func()) []error

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
			images, labels := Tensor[float32]{make([]float32, n*30), []int{n, 2, 3, 5}},
				make(Slice[int], n)
			for j := range images.Data {
				images.Data[j] = float32(random.NormFloat64())
			}
			for i := range labels {
				labels[i] = i * 7 % (n / 2)
			}
			type sample = Pair[Tensor[float32], int]
			slow := Transform(must(Pairs(must(Rows(images)), labels)),
				func(_ context.Context, s sample) (sample, error) {
					time.Sleep(each)
					return s, nil
				})
			size, start, found := max(opts.BatchSize, 1), time.Now(), []int{}
			for _, batch := range batches(t, must(New(slow, CollatePair(Stack[float32], List[int]),
				opts)), 0) {
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

// ## The loader's conformance: what PyTorch's tests and its behaviour say

// TestSamplerOrderIsBatchOrder checks that a sampler's order is the order of
// the batches. (In one Go peer it never was.)
func TestSamplerOrderIsBatchOrder(t *testing.T) {
	data := &probe{n: 50, takes: jitter(1)}
	own := OrderFunc(3, func(epoch int) []int { return []int{epoch, 1, 1} })
	for _, s := range []Sampler{Sequential(50), Random(50, 42), RandomWithReplacement(50, 60, 3),
		own} {
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
	// samples 0 and 1 take longer than 2 and 3
	slow := &probe{n: 10, bad: []int{3}, takes: jitter(4)}
	sixteen := fmt.Sprint(upTo(16)) // indices, and no more
	outside := OrderFunc(4, func(int) []int { return []int{0, -2, 1, 3} })
	ranks := func(count int, tail Tail) Options {
		return Options{Rank: Rank{0, count}, Tail: tail, OnError: dropBad}
	}
	const unequal = "[[0] error in batch 1: all samples were dropped, and ranks must take equal " +
		"steps: " +
		"take this one with weight 0, or use UnevenTail [4] [6]]"
	loadFails := func(_ context.Context, dst, _ []int) ([]int, error) { return dst, errBad }
	two, drop := Options{BatchSize: 2}, Options{BatchSize: 3, OnError: dropBad}
	for _, l := range []loading{
		{"a bad sample", slow, nil, two,
			"[[0 1] error in batch 1, sample 3: bad sample [4 5] [6 7] [8 9]]"},
		{"bad ones dropped", failing(12, 0, 3, 4, 5, 11), nil, drop, "[[1 2] [6 7 8] [9 10]]"},
		{"no sample is good", failing(5, upTo(5)...), nil, two,
			"[error in batch 0, sample 0: bad sample error in batch 1, sample 2: bad sample " +
				"error in batch 2, sample 4: bad sample]"},
		{"the end of a file", eof, nil, two,
			"[error in batch 0, sample 0: EOF error in batch 1, sample 2: EOF]"},
		{"collate", numbers(2), fails, Options{},
			"[error in batch 0: collating 1 samples [0]: bad sample error in batch 1: collating " +
				"1 samples [1]: bad sample]"},
		{"collate, dropping", failing(3, 1), fails, drop,
			"[error in batch 0: collating 2 samples [0 2]: bad sample]"},
		{"collate 20", numbers(20), fails, Options{BatchSize: 20},
			"[error in batch 0: collating 20 samples " + sixteen + ": bad sample]"},
		{"indices outside", &probe{n: 3}, nil, Options{Sampler: outside, OnError: dropBad},
			"[[0] error in batch 1: the sampler: index -2 is " +
				"outside the data set, which has 3 samples [1] error in batch 3: the sampler: " +
				"index 3 is " +
				"outside the data set, which has 3 samples]"},
		{"no index", numbers(3), nil, Options{BatchSampler: fixedBatches{{0}, {}, {2}}},
			"[[0] error in batch 1: the sampler gave no index [2]]"},
		{"load fails, OnError not asked", atOnce{n: 3, load: loadFails}, nil, drop,
			"[error in batch 0: bad sample]"},
		{"all dropped", failing(8, 2), nil, ranks(0, 0), "[[0] [1] [3] [4] [5] [6] [7]]"},
		{"all dropped, UnevenTail", failing(8, 2), nil, ranks(2, UnevenTail), "[[0] [4] [6]]"},
		{"all dropped, PadTail", failing(8, 2), nil, ranks(2, PadTail), unequal},
	} {
		l.check(t, 0)
	}
}

// TestFailedBatch: in order, the cursor stays before a batch that failed until
// a later one has succeeded, so a resume tries the batch again.
func TestFailedBatch(t *testing.T) {
	var at Cursor
	var places []int
	for range newLoader(t, failing(16, 5, 13), Options{BatchSize: 4}).Run(t.Context(), &at) {
		places = append(places, at.Pos)
	}
	t.Logf("in the bodies of batches 0 to 3, of which 1 and 3 failed, pos is %d", places)
	equal(t, "pos in each body", places, []int{4, 4, 12, 12})
	equal(t, "the next epoch", at.Epoch, 1)
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
		"OrderFunc: the order of epoch 2 has 1 positions, must have 4": {Sampler: OrderFunc(4,
			func(int) []int { return []int{0} })},
	} {
		runRow(t, what, func(t *testing.T) {
			for opts.Workers = range 2 {
				l, at := newLoader(t, numbers(4), opts), Cursor{Epoch: 2}
				for _, err := range []error{ending(l.Run(t.Context(), &at)),
					errorOf(l.Batch(t.Context(), 2, 1))} {
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
	equal(t, "a *SampleError, its cause", fmt.Sprint(isSampleError(err), errors.Is(err, errBad)),
		"false true")
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
			traced = append(traced, fmt.Sprint(tm.Epoch, ":", tm.Batch, ":", tm.Samples,
				tm.Dropped))
			inTime, by := !tm.Sent.Before(start) && !tm.Start.Before(tm.Sent), tm.Worker
			failIf(t, !inTime || by < min(0, workers-1) || by >= workers, "%d workers: %+v",
				workers, tm)
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
			"12 error dataloader: epoch 2, batch 4, sample 12: OnError: more than 4 bad samples: "+
			"epoch 2, batch 4, sample 12: bad sample "+
			"12 error dataloader: epoch 2, batch 5: collating 3 samples [15 16 17]: collate "+
			"12 error dataloader: epoch 2, batch 6, sample 19: OnError: enough 24 [21 22 23]]")
		equal(t, "in the end", at, Cursor{Epoch: 3})
		equal(t, "heard", fmt.Sprint(heard), "[0:0 2:6 2:7 2:8 4:12 6:19]")
		equal(t, "collated", collated.Load(), 7)
		budget = 3
		saysAll(t, errorOf(loader.Batch(t.Context(), 0, 2)), "batch 2", "all samples were dropped")
		data.bad = nil
		healed := collect(t, newLoader(t, data,
			Options{BatchSize: 3, Workers: workers, Trace: trace}).Run(t.Context(), &failed))
		equal(t, "healed", fmt.Sprint(healed), "[[12 13 14] [15 16 17] [18 19 20] [21 22 23]]")
		equal(t, "traced", fmt.Sprint(traced),
			"[2:0:2 1 2:1:3 0 2:2:0 3 2:3:3 0 2:4:0 0 2:5:0 0 2:6:0 0 2:7:3 0 "+
				"2:4:3 0 2:5:3 0 2:6:3 0 2:7:3 0]")
	})
}

// ## The loader's cursors

// TestResumeExhaustive checks every small length, batch size, rank, tail and
// number of workers, and batch samplers, whose batches are dealt out whole:
// what comes is what should, and a resume anywhere, by any workers, neither
// loses nor repeats.
func TestResumeExhaustive(t *testing.T) {
	t.Parallel()
	workers := 0 // each deal has another number, in the loop and in the resume
	for n := range 11 {
		if testing.Short() && n%5 != 0 {
			continue
		}
		for _, rank := range []Rank{{0, 0}, {0, 1}, {0, 2}, {1, 2}, {0, 3}, {1, 3}, {2, 3}} {
			for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
				for o := range 8 {
					opts := Options{BatchSize: 1 + o/2, DropLast: o%2 == 1, Shuffle: true, Seed: 7,
						Rank: rank, Tail: tail}
					if noBatch(n, opts) {
						continue // refused
					}
					want := fmt.Sprint(expect(positions(Random(n, 7), 2), 0, opts))
					workers++
					l := loading{"exhaustive", numbers(n), nil, opts, want}
					if workers%5 == 0 {
						l.data = atOnce{n: n,
							load: func(_ context.Context, dst, indices []int) ([]int, error) {
								return List(dst, indices)
							}}
					}
					l.checkWith(t, workers%4, 0, workers/4%4)
				}
				opts, want := Options{BatchSampler: Batches(Random(3*n, 7), 3, false), Rank: rank,
					Tail: tail}, [][]int{}
				for _, k := range expect(upTo(n), 0, Options{Rank: rank, Tail: tail}) {
					want = append(want, opts.BatchSampler.Batches(2)(k[0]))
				}
				if !noBatch(n, Options{Rank: rank, Tail: tail}) {
					loading{"dealt", numbers(3 * n), nil, opts, fmt.Sprint(want)}.checkWith(t, n%4,
						0, (n+1)%4)
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
			opts := Options{BatchSize: 1 + random.IntN(3), Shuffle: true, Seed: seed,
				Rank: Rank{random.IntN(2), 2}, Tail: UnevenTail}
			opts.OnError = []func(*SampleError) error{nil, dropBad}[seed%2]
			want, got := outcomes(newLoader(t, data, opts).Epoch(t.Context(), 1)), []string{}
			at := Cursor{Epoch: 1}
			for tries := 0; at.Epoch == 1 && tries < 1000; tries++ {
				opts.Workers, opts.Unordered = random.IntN(5), random.IntN(3) > 0
				stop, pos := random.IntN(4), at.Pos
				resumes++
				for batch, err := range newLoader(t, data, opts).Run(t.Context(), &at) {
					outcome := outcomes(one(batch, err))[0]
					// what failed just before the stop is tried again
					if err == nil || !slices.Contains(got, outcome) {
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
			missing := slices.DeleteFunc(slices.Clone(want),
				func(outcome string) bool { return slices.Contains(got, outcome) })
			lost, twice = lost+len(missing), twice+len(got)-(len(want)-len(missing))
		})
	}
	t.Logf("100 epochs, left and continued %d times, with 0 to 4 workers: %d batches lost, %d "+
		"came twice", resumes, lost, twice)
	equal(t, "lost, and twice", []int{lost, twice}, []int{0, 0})
}

// FuzzCursor checks that arbitrary bytes as a cursor never panic, hang or
// repeat a batch.
func FuzzCursor(f *testing.F) {
	const state = `"state":{"by":"Random(20, seed 1)","seed":1,` +
		`"rank":{"Index":0,"Count":1},"size":2,"done":`
	for _, rest := range []string{"0," + state + "[[1,3],[5,6]]}",
		"4," + state + "[[1,9223372036854775807]]}", "1e99"} {
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
	made := state{math.MinInt64 + 1, math.MaxUint64 - 1,
		[]Cursor{{1, 2, map[string]int64{"a": 1<<62 + 1}}, {}}}
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
	equal(t, "JSON", string(must(json.Marshal(Cursor{Epoch: 3, Pos: 7744}))),
		`{"epoch":3,"pos":7744}`)
	equal(t, "no pos", fromJSON(t, `{"epoch":3}`), Cursor{Epoch: 3})
	equal(t, "a null state", fromJSON(t, `{"epoch":3,"pos":0,"state":null}`), Cursor{Epoch: 3})
	equal(t, "as another program may write it", fromJSON(t, `{"Epoch":1,"POS":2}`),
		Cursor{Epoch: 1, Pos: 2})

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
	// which calls UnmarshalJSON, unlike the null of a pointer
	must(0, json.Unmarshal([]byte(`{"At":null}`), &kept))
	equal(t, "a cursor that is null", kept.At, Cursor{Epoch: 5})
	saysAll(t, new(Cursor).UnmarshalJSON([]byte(`{"epoch":1}{"epoch":2}`)), other)
	odd := Cursor{State: func() {}}
	equal(t, "a cursor that cannot be saved", odd.String(), errorOf(json.Marshal(odd)).Error())
	at, names := Cursor{Epoch: 1}, sampler{n: 4, name: "caf\xe9", order: Sequential(4).Order}
	loader := newLoader(t, numbers(4), Options{Sampler: names})
	readFirst(loader.Run(t.Context(), &at))
	before := at
	equal(t, "a cursor can be compared with itself", before == at, true)
	equal(t, "the rest", collect(t, loader.Run(t.Context(), ptr(throughJSON(t, at)))),
		[][]int{{1}, {2}, {3}})
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
		return sized(n, Options{BatchSize: size, DropLast: true, Rank: Rank{count - 1, count},
			Tail: tail})
	}
	batched := func(n int, b BatchSampler) error { return sized(n, Options{BatchSampler: b}) }
	weighted, buckets := must(Weighted([]float64{1, 2, 3, 4, 5}, 2, true, 1)),
		must(Buckets([]int{1, 2, 3}, 9, 1))
	pairs, none, missing := Batches(Resize(weighted, 4), 2, true), fixedBatches{},
		(*DataLoader[int])(nil)
	const excludes = "dataloader: Options.BatchSampler excludes "
	panics(t, map[string]func(){
		"Run: the cursor is nil … new(Cursor)":             func() { three.Run(t.Context(), nil) },
		"At: epoch is 0 and k is -1, must not be negative": func() { three.At(0, -1) },
		"At: epoch is -1":        func() { three.At(-1, 0) },
		"At: epoch is … too far": func() { three.At(math.MaxInt, 1) },
	})
	refused(t, []refusal{
		{errorOf(New(Dataset[int](nil), List[int], Options{})), "data set is nil"},
		{errorOf(New(some, (Collate[int, []int])(nil), Options{})), "Collate is nil"},
		{errorOf(New(&probe{n: -5}, List[int], Options{})),
			"number of samples is -5 … must not be negative"},
		{errorOf(NewBatchFunc[int](3, nil, Options{})), "NewBatchFunc: load is nil"},
		{panicOf(func() { missing.Run(t.Context(), new(Cursor)) }),
			"panic dataloader: the loader is nil; look at the error of New"},
		{panicOf(func() {
			missing.Len()
		}), "panic dataloader: the loader is nil; look at the error of New"},
		{panicOf(func() { missing.At(0, 0) }),
			"panic dataloader: the loader is nil; look at the error of New"},
		{panicOf(func() { missing.Batch(t.Context(), 0, 0) }),
			"panic dataloader: the loader is nil; look at the error of New"},
		{panicOf(func() { missing.Recycle(0) }),
			"panic dataloader: the loader is nil; look at the error of New"},
		{errorOf(three.Batch(t.Context(), -1, 0)), "batch 0 of epoch -1: epochs begin at 0"},
		{errorOf(three.Batch(t.Context(), 0, -1)), "batch -1 … 3 batches"},
		{errorOf(three.Batch(t.Context(), 0, 3)), "batch 3 … 3 batches"},
		{loader(Options{DataVersion: "\xff"}), `Options.DataVersion is "\xff", must be UTF-8`},
		{loader(Options{BatchSize: -1}), "Options.BatchSize is -1 … positive"},
		{loader(Options{Workers: -1}), "Options.Workers is -1 … not be negative"},
		{loader(Options{Workers: 1, Prefetch: -2}), "Options.Prefetch is -2 … positive"},
		{loader(Options{Prefetch: 4}), "Options.Prefetch is 4 without workers … set Workers"},
		{loader(Options{Workers: math.MaxInt, Prefetch: 3}),
			"Options.Workers × Prefetch … × 3 … less than 2^31"},
		{loader(Options{Sampler: Sequential(3), Shuffle: true}),
			"Options.Sampler excludes Shuffle"},
		{loader(Options{BatchSampler: none, BatchSize: 2}),
			excludes + "BatchSize (2); leave it unset"},
		{loader(Options{BatchSampler: none, Shuffle: true}),
			excludes + "Shuffle (true); leave it unset"},
		{loader(Options{BatchSampler: none, DropLast: true}),
			excludes + "DropLast (true); leave it unset"},
		{loader(Options{BatchSampler: none, Sampler: Sequential(1)}),
			excludes + "Sampler; leave it unset"},
		{loader(Options{Rank: Rank{3, 3}}), "Options.Rank … Index: 3 … Count: 3 … 0 to 2"},
		{loader(Options{Rank: Rank{-1, 3}}), "Options.Rank … Index: -1 … 0 to 2"},
		{loader(Options{Rank: Rank{1, 0}}), "Options.Rank … Index: 1 … set Count"},
		{loader(Options{Rank: Rank{0, 1<<20 + 1}}),
			"dataloader: Options.Rank is {Index: 0, Count: 1048577}; Count must be 0 to " +
				"1048576, and Index 0 to 1048575"},
		{loader(Options{Rank: Rank{1<<20 - 1, 1 << 20}}), ""},
		{loader(Options{Rank: Rank{0, -1}}), "Options.Rank … Count: -1 … must be 0 to"},
		{loader(Options{Tail: 7}), "Options.Tail is 7 … UnevenTail"},
		{loader(Options{Tail: -1}), "Options.Tail is -1"},
		{loader(Options{Sampler: sampler{n: -3}}), "dataloader.sampler is -3 … must be 0 to"},
		{sized(4, Options{Sampler: weighted}),
			"Weighted(2 of 5, … is for 5 samples, the data set has 4 … a weight"},
		{sized(6, Options{Sampler: Resize(Resize(weighted, 3), 4)}),
			"Resize(Resize(Weighted( … for 5 samples … has 6"},
		{batched(6, pairs), "Batches(Resize(Weighted( … for 5 samples … has 6"},
		{batched(5, buckets), "Buckets(3, … is for 3 samples, the data set has 5 … a length"},
		{loader(Options{BatchSize: 4, DropLast: true}),
			"no batch of 3 samples … Sequential(3) … BatchSize 4, DropLast true"},
		{ranks(10, 4, 4, PadTail),
			"10 samples … BatchSize 4, DropLast true, Rank.Count 4, DropTail false … smaller " +
				"batches"},
		{ranks(10, 3, 4, DropTail), "no batch of 10 samples … DropTail true"},
		{ranks(3, 1, 4, DropTail), "no batch of 3 samples … fewer ranks"},
		{batched(10, Batches(Sequential(10), 64, true)),
			"Batches(Sequential(10), 64, dropLast) is empty, and there are 10 samples"},
		{batched(0, Batches(Sequential(0), 2, true)), ""},
		{sized(10, Options{Sampler: Sequential(0)}),
			"Sequential(0) is empty, and there are 10 samples"},
	})
	const tooFar = "65 … is for 65 samples, the data set has 64; … Buckets a length, and other " +
		"orders an n of at most 64"
	for _, s := range []Sampler{
		Sequential(65), Random(65, 1), TorchRandom(65, 1), RandomWithReplacement(65, 9, 1),
		Resize(Random(65, 1), 100),
	} {
		runRow(t, fmt.Sprint(s), func(t *testing.T) {
			for n, want := range map[int]string{64: tooFar, 65: "", 66: ""} {
				refusal{sized(n, Options{Sampler: s}), want}.check(t)
				refusal{batched(n, Batches(s, 8, true)), want}.check(t)
			}
		})
	}
}

// Second reading: files, streams and shards; the Examples.

// # More helpers

// TestMain says what is missing if the .go files were copied alone.
func TestMain(m *testing.M) {
	if _, err := os.Stat("testdata/cursors.json"); err != nil {
		fmt.Fprintf(os.Stderr,
			"%v\nthe tests need the folder testdata of this package: copy it, too\n", err)
		os.Exit(1)
	}
	flag.Parse()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		defer server.Close()
		_, err = net.Dial("tcp", server.Addr().String())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr,
			"%v\nthis machine has no loopback interface, so what reads from the web is skipped\n",
			err)
		skip := flag.Lookup("test.skip").Value
		must(0, skip.Set(strings.TrimPrefix(skip.String()+"|"+fromTheWeb, "|")))
	}
	m.Run()
}

// fromTheWeb matches the tests that need a web server on this machine.
const fromTheWeb = "^Test(Web.*|Secrets|OpenShard)$"

// readAll writes down epoch 0 of a stream, as outcomes does.
func readAll[T any](t testing.TB, s Stream[T]) []string { return outcomes(s.Epoch(t.Context(), 0)) }

// resume writes down what a stream yields from a cursor on.
func resume[T any](t testing.TB, s Stream[T], from Cursor) []string {
	return outcomes(s.Run(t.Context(), &from))
}

// tree is a file system with folders at several depths.
func tree() fs.FS {
	files, names := fstest.MapFS{},
		"a.txt b.png cat/1.png cat/2.png cat/old/0.png cat/.hidden dog/1.png dog/x/y/z.txt "+
			".git/config"
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
	runFromStream = func(ctx context.Context, w *world, e engine, slots []Item[int],
		body func(slot int) bool) {
		stream := Indices(Sequential(w.all)).Filter(func(int) bool { w.sent.Add(1); return true })
		readAhead(ctx, stream, Cursor{}, e, slots, body)
	}
}

// A feed is the stream 0, 1, …, n-1, plus 100 times the epoch, made of a
// sequence. It counts how the sequence is read.
type feed struct {
	n   int
	bad []int // the items that fail
	// called before item i, and with n before the end; nil: nothing
	before func(ctx context.Context, i int)
	read   atomic.Int64 // how many items were read
	left   atomic.Int64 // how many sequences have ended, or were left
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
	return Map(Indices(Sequential(len(s))), 0,
		func(_ context.Context, i int) (string, error) { return s[i : i+1], nil })
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
	{"Filter", func(s ints, n int, _ func() ints) ints {
		return s.Filter(func(i int) bool { return i%4 != n%2*2 })
	}},
	{"Take", func(s ints, n int, _ func() ints) ints { return s.Take(n%20 + 1) }},
	{"Repeat", func(s ints, n int, _ func() ints) ints { return s.Repeat(n%3 + 1) }},
	{"Chain", func(s ints, _ int, other func() ints) ints { return Chain(s, other()) }},
	{"Zip", func(s ints, n int, other func() ints) ints {
		return Map(Zip(s, other()), n/4%4, add)
	}},
	{"Shuffle", func(s ints, n int, _ func() ints) ints { return s.Shuffle(n%6+1, uint64(n)) }},
	{"Mix", func(s ints, n int, other func() ints) ints {
		weights := [][]float64{nil, {1, float64(n%4) + .5}}[n/8%2]
		return Mix(MixOptions{Weights: weights, Seed: uint64(n),
			Stop: []Stop{StopAtFirst, StopAtLast}[n/4%2]}, s, other())
	}},
	{"Shard", func(s ints, n int, _ func() ints) ints {
		return s.Shard(Rank{n % 3, 3}, Tail(n/4%3))
	}},
	{"OnError", func(s ints, n int, _ func() ints) ints {
		return s.OnError(func(e *SampleError) error { return []error{e, errBad}[(n+e.Pos)%2] })
	}},
	{"Batch", func(s ints, n int, _ func() ints) ints {
		return Unbatch(Batch(s, n%4+1, List[int]))
	}},
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
				"item %d: next is epoch %d, pos %d, after pos %d", len(want), item.Next.Epoch,
				item.Next.Pos, at.Pos)
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
		if got := outcomes(s.Run(t.Context(), &at)); !slices.Equal(got, want) ||
			at != (Cursor{Epoch: from.Epoch + 1}) {
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
			equal(t, fmt.Sprintf("cursor %d from %v", len(got), from), at.String(),
				saved[min(len(got), len(want))])
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
	stopped := []error{errors.New("stopped"),
		fmt.Errorf("stopped: %w", &SampleError{Err: io.EOF})}[k%2]
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
	if n != k || !complete && !errors.Is(end, stopped) || complete != (k == len(want)) &&
		(complete || exact) {
		t.Fatalf("stopped after %d of %d items: %d came, and then %v, at %v", k, len(want), n, end,
			at)
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

// shown resumes a loader or a stream at a cursor, in words.
func shown[T any](s interface {
	Run(context.Context, *Cursor) iter.Seq2[T, error]
}) func(*Cursor) []string {
	return func(at *Cursor) []string { return outcomes(s.Run(context.Background(), at)) }
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
			h.Typeflag = map[byte]byte{'=': tar.TypeReg, '>': tar.TypeLink,
				'@': tar.TypeSymlink}[e[i]]
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

// withBytes returns data with other bytes at an offset.
func withBytes(data []byte, at int, bytes string) []byte {
	return slices.Concat(data[:at], []byte(bytes), data[min(at+len(bytes), len(data)):])
}

// withHeader returns data with other bytes at an offset in the header at
// another, and its checksum corrected.
func withHeader(data []byte, header, at int, bytes string) []byte {
	data = withBytes(data, header+at, bytes)
	return withBytes(data, header+148, fmt.Sprintf("%06o\x00 ",
		sumHeader(data[header:header+tarBlock])))
}

// tarHeader returns a header of any type, and its data in whole blocks.
func tarHeader(kind, name, data string) []byte {
	b := make([]byte, roundToBlocks(int64(tarBlock+len(data))))
	size := fmt.Sprintf("%011o\x00", len(data))
	for at, field := range map[int]string{0: name, 100: "0000644\x00", 124: size,
		257: posixMagic + "00", tarBlock: data} {
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
	return slices.Contains([]string{"\x1f\x8b", "BZ", "\xfd7", "\x28\xb5"},
		string(data[:min(2, len(data))]))
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
	return io.MultiReader(bytes.NewReader(data),
		readerFunc(func([]byte) (int, error) { return 0, fail() }))
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
		if e := (*TarError)(nil); item.Err != nil &&
			(!errors.As(item.Err, &e) || e.Shard != "0" || e.Rest != rest) {
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
	sound := "a.txt=first a.cls=1 b.txt=" + strings.Repeat("second", 200) +
		" b.cls=2 c.txt=third c.cls=3"
	large := "a.txt=" + strings.Repeat("x", 256<<10-3*tarBlock)
	data = tarEntries(strings.Fields(strings.NewReplacer("sound", sound, "large",
		large).Replace(steps[0]))...)
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

// One Example for each exported name, which shows what the name is for. What
// one does with several of them is a recipe: testdata/recipes/README.md lists
// these. Inside the package New stands for dataloader.New.

// ## dataset.go: what the samples are

// A data set of your own has Len and Get. Slice, Func and Rows are data sets,
// too.
func ExampleDataset() {
	var data Dataset[string] = Slice[string]{"a", "b", "c"}
	sample, err := data.Get(context.Background(), data.Len()-1)
	fmt.Println(sample, err)
	// Output: c <nil>
}

// Func makes a data set of a function. Workers call it at the same time.
func ExampleFunc() {
	squares := Func(4, func(ctx context.Context, i int) (int, error) { return i * i, nil })
	fmt.Println(squares.Get(context.Background(), 3))
	fmt.Println(squares.Get(context.Background(), 4))
	// Output:
	// 9 <nil>
	// 0 index 4 is outside the data set, which has 4 samples
}

// A Slice is a data set in memory.
func ExampleSlice() {
	loader, err := New(Slice[string]{"a", "b", "c"}, List[string], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [a b] <nil>
	// [c] <nil>
}

// Rows are the samples of an arena loader: the features of all samples are one
// array, and a batch is a copy of some of its rows.
func ExampleRows() {
	features := Tensor[float32]{Data: []float32{0, 0, 1, 1, 2, 2}, Shape: []int{3, 2}}
	data, err := Rows(features)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.Shape, batch.Data, err)
	}
	// Output:
	// [2 2] [0 0 1 1] <nil>
	// [1 2] [2 2] <nil>
}

// Pairs joins features and labels. Their numbers of samples must be equal.
func ExamplePairs() {
	images, labels := Slice[string]{"cat.jpg", "dog.jpg"}, Slice[int]{0, 1}
	data, err := Pairs(images, labels)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(data.Get(context.Background(), 1))
	_, err = Pairs(images, Slice[int]{1, 2, 3})
	fmt.Println(err)
	// Output:
	// {dog.jpg 1} <nil>
	// dataloader: Pairs: the first data set has 2 samples, the second 3; they must be equal
}

// A Pair is a sample or a batch of two parts, such as an image and its label.
func ExamplePair() {
	sample := Pair[string, int]{First: "cat.jpg", Second: 0}
	fmt.Println(sample.First, sample.Second)
	// Output: cat.jpg 0
}

// Transform computes each sample when it is fetched, by the worker that fetches
// it.
func ExampleTransform() {
	numbers := Slice[string]{"7", "8", "nine"}
	parsed := Transform(numbers, func(_ context.Context, text string) (int, error) {
		return strconv.Atoi(text)
	})
	fmt.Println(parsed.Get(context.Background(), 1))
	// Output: 8 <nil>
}

// Cache keeps each sample, so later epochs call nothing.
func ExampleCache() {
	calls := 0
	remote := Func(2, func(ctx context.Context, i int) (int, error) {
		calls++
		return i, nil
	})
	loader, err := New(Cache(remote), List[int], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for epoch := range 3 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			fmt.Println("epoch", epoch, batch, err, "after", calls, "calls")
		}
	}
	// Output:
	// epoch 0 [0 1] <nil> after 2 calls
	// epoch 1 [0 1] <nil> after 2 calls
	// epoch 2 [0 1] <nil> after 2 calls
}

// Concat puts data sets one after the other.
func ExampleConcat() {
	data := Concat[int](Slice[int]{1, 2}, Slice[int]{10, 20, 30})
	sample, err := data.Get(context.Background(), 3)
	fmt.Println(data.Len(), sample, err)
	// Output: 5 20 <nil>
}

// Subset is a part of a data set, in the order of the indices.
func ExampleSubset() {
	few, err := Subset(Slice[string]{"a", "b", "c", "d"}, []int{3, 0})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(few.Len())
	fmt.Println(few.Get(context.Background(), 0))
	// Output:
	// 2
	// d <nil>
}

// Split deals a data set out at random, with the numbers of torch's
// random_split.
func ExampleSplit() {
	parts, err := Split(Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 1, 7, 3)
	if err != nil {
		log.Fatal(err)
	}
	for _, part := range parts {
		loader, err := New(part, List[int], Options{BatchSize: 10})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			fmt.Println(batch, err)
		}
	}
	// Output:
	// [5 6 1 2 0 8 9] <nil>
	// [3 7 4] <nil>
}

// Rand draws the same numbers for augmentation with any number of workers.
func ExampleRand() {
	data := Func(3, func(ctx context.Context, i int) (string, error) {
		flip, angle := Rand(ctx).IntN(2) == 1, Rand(ctx).IntN(10)
		return fmt.Sprintf("image %d flip %t angle %d", i, flip, angle), nil
	})
	for _, workers := range []int{0, 3} {
		loader, err := New(data, List[string], Options{Seed: 7, Workers: workers})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			fmt.Println(batch, err)
		}
	}
	// Output:
	// [image 0 flip true angle 9] <nil>
	// [image 1 flip true angle 7] <nil>
	// [image 2 flip false angle 9] <nil>
	// [image 0 flip true angle 9] <nil>
	// [image 1 flip true angle 7] <nil>
	// [image 2 flip false angle 9] <nil>
}

// WithSeed makes a second generator, whose numbers do not depend on how many
// the first one has drawn.
func ExampleWithSeed() {
	data := Func(2, func(ctx context.Context, i int) (int, error) {
		crop := Rand(ctx)
		color := Rand(WithSeed(ctx, 2))
		return 10*crop.IntN(10) + color.IntN(10), nil
	})
	loader, err := New(data, List[int], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(loader.Batch(context.Background(), 0, 0))
	// Output: [37 47] <nil>
}

// Worker is the number of the worker that loads, for what workers do not share,
// such as a decoder.
func ExampleWorker() {
	const workers = 2
	var decoders [workers]strings.Builder // each is used by one worker
	data := Func(4, func(ctx context.Context, i int) (int, error) {
		decoder := &decoders[Worker(ctx)]
		decoder.Reset()
		fmt.Fprint(decoder, i)
		return strconv.Atoi(decoder.String())
	})
	loader, err := New(data, List[int], Options{BatchSize: 2, Workers: workers})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [0 1] <nil>
	// [2 3] <nil>
}

// Files reads the files of any file system, here one in memory.
func ExampleFiles() {
	fsys := fstest.MapFS{
		"a.txt":   {Data: []byte("one")},
		"b/c.txt": {Data: []byte("two")},
		"b/d.jpg": {Data: []byte("not text")},
	}
	files, err := Files(fsys, "**/*.txt")
	if err != nil {
		log.Fatal(err)
	}
	for i := range files.Len() {
		file, err := files.Get(context.Background(), i)
		fmt.Println(file.Name, string(file.Data), err)
	}
	// Output:
	// a.txt one <nil>
	// b/c.txt two <nil>
}

// A File is a name and the data. In a Record the name is the field's.
func ExampleFile() {
	file := File{Name: "txt", Data: []byte("meow")}
	fmt.Println(Decode(file.Name, file.Data))
	// Output: meow <nil>
}

// Folder lists a tree with a folder for each class. A sample is a file's name
// and its label; Transform reads the files.
func ExampleFolder() {
	fsys := fstest.MapFS{"cat/1.txt": {}, "cat/Thumbs.db": {}, "dog/1.txt": {}, "dog/old/2.txt": {}}
	samples, classes, err := Folder(fsys, "**/*.txt")
	fmt.Println(classes, err)
	fmt.Println(samples)
	// Output:
	// [cat dog] <nil>
	// [{cat/1.txt 0} {dog/1.txt 1} {dog/old/2.txt 1}]
}

// ## dataset.go: streams

// A Stream is data without indices. It is read by a loop over an epoch, and a
// stage makes another stream of it.
func ExampleStream() {
	odd := Indices(Sequential(6)).Filter(func(i int) bool { return i%2 == 1 })
	for i, err := range odd.Epoch(context.Background(), 0) {
		fmt.Println(i, err)
	}
	// Output:
	// 1 <nil>
	// 3 <nil>
	// 5 <nil>
}

// Epoch starts over in each new loop, as PyTorch's DataLoader does.
func ExampleStream_Epoch() {
	s := Indices(Random(3, 1))
	for _, epoch := range []int{0, 0, 1} {
		for i, err := range s.Epoch(context.Background(), epoch) {
			fmt.Print(i, " ", err, "  ")
		}
		fmt.Println("epoch", epoch)
	}
	// Output:
	// 0 <nil>  1 <nil>  2 <nil>  epoch 0
	// 0 <nil>  1 <nil>  2 <nil>  epoch 0
	// 2 <nil>  0 <nil>  1 <nil>  epoch 1
}

// Run continues at its cursor, as an iterator does.
func ExampleStream_Run() {
	s := Indices(Sequential(4))
	var at Cursor
	for range 2 {
		for i, err := range s.Run(context.Background(), &at) {
			fmt.Println(i, err)
			if i == 1 {
				break
			}
		}
		fmt.Println("left at", at)
	}
	// Output:
	// 0 <nil>
	// 1 <nil>
	// left at {"epoch":0,"pos":2,"state":{"by":"Indices(Sequential(4))"}}
	// 2 <nil>
	// 3 <nil>
	// left at {"epoch":1,"pos":0}
}

// Items yields what Run has of each item: the value or the error, and the
// cursor that follows.
func ExampleStream_Items() {
	s := Indices(Sequential(3))
	for item, err := range s.Items(context.Background(), Cursor{Epoch: 7}) {
		fmt.Println(item.Value, item.Err, item.Next.Epoch, item.Next.Pos, err)
	}
	// Output:
	// 0 <nil> 7 1 <nil>
	// 1 <nil> 7 2 <nil>
	// 2 <nil> 7 3 <nil>
}

// An Item has the cursor of the place after it. A stream of your own makes
// them.
func ExampleItem() {
	letter := Item[string]{Value: "a", Next: Cursor{Epoch: 0, Pos: 1}}
	fmt.Println(letter.Value, letter.Err, letter.Next)
	// Output: a <nil> {"epoch":0,"pos":1}
}

// FromSeq makes a stream of a sequence. A resume reads the sequence again from
// its start, up to the cursor.
func ExampleFromSeq() {
	lines := FromSeq(func(ctx context.Context, epoch int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for text := bufio.NewScanner(strings.NewReader("one\ntwo\n")); text.Scan(); {
				if !yield(text.Text(), nil) {
					return
				}
			}
		}
	})
	for line, err := range lines.Epoch(context.Background(), 0) {
		fmt.Println(line, err)
	}
	// Output:
	// one <nil>
	// two <nil>
}

// Indices is the order of a sampler as a stream.
func ExampleIndices() {
	data := Slice[string]{"a", "b", "c"}
	for sample, err := range Map(Indices(Random(3, 1)), 2, data.Get).Epoch(context.Background(),
		0) {
		fmt.Println(sample, err)
	}
	// Output:
	// a <nil>
	// b <nil>
	// c <nil>
}

// NewStream makes a source of your own, here one that resumes by its position.
func ExampleNewStream() {
	letters := NewStream(func(ctx context.Context, from Cursor) iter.Seq2[Item[string], error] {
		return func(yield func(Item[string], error) bool) {
			for pos := from.Pos; pos < 4; pos++ {
				next := Cursor{Epoch: from.Epoch, Pos: pos + 1}
				if !yield(Item[string]{Value: "abcd"[pos : pos+1], Next: next}, ctx.Err()) {
					return
				}
			}
		}
	})
	at := Cursor{Pos: 2}
	for letter, err := range letters.Run(context.Background(), &at) {
		fmt.Println(letter, err)
	}
	// Output:
	// c <nil>
	// d <nil>
}

// NewStage makes a stage of your own, which yields items of another stream.
// This one counts them and passes them on, so it says that it is one for one.
func ExampleNewStage() {
	n := 0
	counted := NewStage(Indices(Sequential(3)), true, func(
		ctx context.Context, src Stream[int], from Cursor,
	) iter.Seq2[Item[int], error] {
		return func(yield func(Item[int], error) bool) {
			for item, err := range src.Items(ctx, from) {
				n++
				if !yield(item, err) {
					return
				}
			}
		}
	})
	for i, err := range counted.Epoch(context.Background(), 0) {
		fmt.Println(i, err, n)
	}
	// Output:
	// 0 <nil> 1
	// 1 <nil> 2
	// 2 <nil> 3
}

// Filter keeps the items for which its function is true. An item that failed
// stays, as an error in its place.
func ExampleStream_Filter() {
	words := Slice[string]{"7", "8", "nine", "10"}
	numbers := Map(Indices(Sequential(4)), 2, func(ctx context.Context, i int) (int, error) {
		return strconv.Atoi(words[i])
	})
	not8 := numbers.Filter(func(n int) bool { return n != 8 })
	for n, err := range not8.Epoch(context.Background(), 0) {
		fmt.Println(n, err)
	}
	// Output:
	// 7 <nil>
	// 0 dataloader: epoch 0, the item before pos 3: Map: strconv.Atoi: parsing "nine": invalid syntax
	// 10 <nil>
}

// OnError decides what becomes of an item that failed: nil drops it.
func ExampleStream_OnError() {
	numbers := Map(Indices(Sequential(4)), 0, func(_ context.Context, i int) (int, error) {
		if i == 2 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	dropped := numbers.OnError(func(bad *SampleError) error {
		fmt.Println("dropped:", bad.Err)
		return nil
	})
	for i, err := range dropped.Epoch(context.Background(), 0) {
		fmt.Println(i, err)
	}
	// Output:
	// 0 <nil>
	// 1 <nil>
	// dropped: Map: unexpected EOF
	// 3 <nil>
}

// Take ends an epoch after some items.
func ExampleStream_Take() {
	for i, err := range Indices(Random(1000, 1)).Take(3).Epoch(context.Background(), 0) {
		fmt.Println(i, err)
	}
	// Output:
	// 467 <nil>
	// 493 <nil>
	// 951 <nil>
}

// Repeat joins several epochs into one.
func ExampleStream_Repeat() {
	for i, err := range Indices(Random(2, 1)).Repeat(3).Epoch(context.Background(), 0) {
		fmt.Print(i, " ", err, "  ")
	}
	// Output: 1 <nil>  0 <nil>  0 <nil>  1 <nil>  0 <nil>  1 <nil>
}

// Cycle joins epochs without an end.
func ExampleStream_Cycle() {
	for i, err := range Indices(Sequential(3)).Cycle().Take(8).Epoch(context.Background(), 0) {
		fmt.Print(i, " ", err, "  ")
	}
	// Output: 0 <nil>  1 <nil>  2 <nil>  0 <nil>  1 <nil>  2 <nil>  0 <nil>  1 <nil>
}

// Chain puts streams one after the other.
func ExampleChain() {
	short, long := Indices(Sequential(2)), Indices(Sequential(4))
	for i, err := range Chain(short, long).Epoch(context.Background(), 0) {
		fmt.Print(i, " ", err, "  ")
	}
	// Output: 0 <nil>  1 <nil>  0 <nil>  1 <nil>  2 <nil>  3 <nil>
}

// Zip joins two streams item by item, and ends with the shorter one.
func ExampleZip() {
	left, right := Indices(Sequential(9)), Indices(Random(3, 1))
	for pair, err := range Zip(left, right).Epoch(context.Background(), 0) {
		fmt.Println(pair.First, pair.Second, err)
	}
	// Output:
	// 0 0 <nil>
	// 1 1 <nil>
	// 2 2 <nil>
}

// ## sampler.go: in which order they come, and to whom

// A Sampler is a function of the epoch and the position. Its name is in the
// cursors.
func ExampleSampler() {
	s := Random(5, 1)
	for epoch := range 2 {
		order := s.Order(epoch)
		for pos := range s.Len() {
			fmt.Print(order(pos), " ")
		}
	}
	fmt.Println(s)
	// Output: 2 1 0 4 3 1 3 0 2 4 Random(5, seed 1)
}

// Sequential is the order of the data.
func ExampleSequential() {
	order := Sequential(4).Order(0)
	fmt.Println(order(0), order(1), order(2), order(3))
	// Output: 0 1 2 3
}

// Random is another permutation in each epoch.
func ExampleRandom() {
	for epoch := range 2 {
		order := Random(1_000_000_000, 1).Order(epoch) // without a table
		fmt.Println(order(0), order(1), order(999_999_999))
	}
	// Output:
	// 895659498 386176137 702623697
	// 981388861 734524920 603567458
}

// TorchRandom gives each rank the samples of DistributedSampler, so that Go and
// Python jobs can share an epoch.
func ExampleTorchRandom() {
	for rank := range 3 {
		loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, List[int], Options{
			BatchSize: 4, Sampler: TorchRandom(10, 0), Rank: Rank{Index: rank, Count: 3},
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			fmt.Println("rank", rank, batch, err)
		}
	}
	// Output:
	// rank 0 [4 5 0 2] <nil>
	// rank 1 [1 3 8 4] <nil>
	// rank 2 [7 9 6 1] <nil>
}

// RandomWithReplacement draws each sample from all of them.
func ExampleRandomWithReplacement() {
	s := RandomWithReplacement(5, 8, 1) // 8 of 5
	order := s.Order(0)
	for pos := range s.Len() {
		fmt.Print(order(pos), " ")
	}
	// Output: 0 3 0 4 3 2 0 0
}

// Weighted draws samples in proportion to their weights.
func ExampleWeighted() {
	s, err := Weighted([]float64{0, 1, 0, 3}, 8, true, 1)
	if err != nil {
		log.Fatal(err)
	}
	order := s.Order(0)
	for pos := range s.Len() {
		fmt.Print(order(pos), " ")
	}
	// Output: 3 3 3 1 3 1 3 3
}

// Resize makes epochs longer or shorter, as for a given number of steps.
func ExampleResize() {
	s := Resize(Random(5, 1), 8)
	order := s.Order(0)
	for pos := range s.Len() {
		fmt.Print(order(pos), " ")
	}
	// Output: 2 1 0 4 3 1 3 0
}

// OrderFunc makes a sampler of a list that is computed for each epoch.
func ExampleOrderFunc() {
	s := OrderFunc(3, func(epoch int) []int { return []int{epoch, 10, 20} })
	order := s.Order(7)
	fmt.Println(order(0), order(1), order(2))
	// Output: 7 10 20
}

// Batches makes a BatchSampler of a Sampler. A BatchSampler of your own chooses
// the samples of each batch.
func ExampleBatches() {
	loader, err := New(Slice[string]{"a", "b", "c"}, List[string], Options{
		BatchSampler: Batches(Sequential(3), 2, true), // dropLast
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output: [a b] <nil>
}

// Buckets makes batches of sequences of similar length, for Pad to fill. A
// padded batch here takes at most 12 elements.
func ExampleBuckets() {
	texts := Slice[[]rune]{[]rune("hello"), []rune("I"), []rune("go"), []rune("world"), []rune("a")}
	sampler, err := Buckets([]int{5, 1, 2, 5, 1}, 12, 1)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := New(texts, Pad('.'), Options{BatchSampler: sampler})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.Shape, batch.Lengths, string(batch.Data), err)
	}
	// Output:
	// [2 1] [1 1] aI <nil>
	// [1 2] [2] go <nil>
	// [2 5] [5 5] worldhello <nil>
}

// A Rank is the part of one process of several: together they load each sample
// once.
func ExampleRank() {
	for rank := range 2 {
		loader, err := New(Slice[int]{0, 1, 2, 3}, List[int], Options{
			BatchSize: 2, Rank: Rank{Index: rank, Count: 2},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(loader.Batch(context.Background(), 0, 0))
	}
	// Output:
	// [0 2] <nil>
	// [1 3] <nil>
}

// RankFromEnv is the rank that a launcher, such as torchrun, srun or mpirun,
// has given this process.
func ExampleRankFromEnv() {
	os.Setenv("RANK", "3") // as torchrun does
	os.Setenv("WORLD_SIZE", "4096")
	defer os.Unsetenv("RANK")
	defer os.Unsetenv("WORLD_SIZE")
	fmt.Println(RankFromEnv())
	// Output: {3 4096} <nil>
}

// A Tail says what becomes of the samples that are left over when ranks have
// dealt out the others: PadTail repeats some, DropTail leaves them out, and
// UnevenTail gives some ranks a sample more.
func ExampleTail() {
	for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
		for rank := range 2 {
			part := Indices(Sequential(3)).Shard(Rank{Index: rank, Count: 2}, tail)
			var got []int
			for i, err := range part.Epoch(context.Background(), 0) {
				if err != nil {
					log.Fatal(err)
				}
				got = append(got, i)
			}
			fmt.Println("rank", rank, got)
		}
	}
	// Output:
	// rank 0 [0 2]
	// rank 1 [1 0]
	// rank 0 [0]
	// rank 1 [1]
	// rank 0 [0 2]
	// rank 1 [1]
}

// Shard deals a stream out to ranks.
func ExampleStream_Shard() {
	part := Indices(Sequential(6)).Shard(Rank{Index: 1, Count: 3}, DropTail)
	for i, err := range part.Epoch(context.Background(), 0) {
		fmt.Println(i, err)
	}
	// Output:
	// 1 <nil>
	// 4 <nil>
}

// Shuffle keeps some items in memory, and yields one of them at random.
func ExampleStream_Shuffle() {
	for i, err := range Indices(Sequential(8)).Shuffle(4, 1).Epoch(context.Background(), 0) {
		fmt.Print(i, " ", err, "  ")
	}
	// Output: 4 <nil>  1 <nil>  2 <nil>  3 <nil>  7 <nil>  0 <nil>  5 <nil>  6 <nil>
}

// Mix takes items of several streams in turn, here until all have ended.
func ExampleMix() {
	short, long := Indices(Sequential(2)), Indices(Sequential(5))
	for i, err := range Mix(MixOptions{}, short, long).Epoch(context.Background(), 0) {
		fmt.Print(i, " ", err, "  ")
	}
	// Output: 0 <nil>  0 <nil>  1 <nil>  1 <nil>  2 <nil>  3 <nil>  4 <nil>
}

// With Weights the next stream is drawn at random.
func ExampleMixOptions() {
	code := FromSeq(func(context.Context, int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for yield("code", nil) {
			}
		}
	})
	prose := Map(code, 0, func(context.Context, string) (string, error) { return "prose", nil })
	mix := Mix(MixOptions{Weights: []float64{1, 3}, Seed: 1}, code, prose)
	for text, err := range mix.Take(6).Epoch(context.Background(), 0) {
		fmt.Print(text, " ", err, "  ")
	}
	// Output: prose <nil>  prose <nil>  prose <nil>  code <nil>  prose <nil>  prose <nil>
}

// A Stop says when a mix ends, and whether a stream that has ended begins its
// next epoch. CycleForever is for mixes that end with Take.
func ExampleStop() {
	short, long := Indices(Sequential(2)), Indices(Sequential(5))
	for _, stop := range []Stop{StopAtLast, StopAtFirst, CycleUntilLast, CycleForever} {
		mix, got := Mix(MixOptions{Stop: stop}, short, long).Take(12), []int{}
		for i, err := range mix.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			got = append(got, i)
		}
		fmt.Println(got)
	}
	// Output:
	// [0 0 1 1 2 3 4]
	// [0 0 1 1]
	// [0 0 1 1 0 2 1 3 0 4 1]
	// [0 0 1 1 0 2 1 3 0 4 1 0]
}

// ## batch.go: what shape a batch has

// A Collate makes a batch of samples. It may reuse the memory of dst, a batch
// that was given to Recycle.
func ExampleCollate() {
	var lengths Collate[string, []int] = func(dst []int, samples []string) ([]int, error) {
		dst = dst[:0]
		for _, s := range samples {
			dst = append(dst, len(s))
		}
		return dst, nil
	}
	loader, err := New(Slice[string]{"a", "bcd", "ef"}, lengths, Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [1 3] <nil>
	// [2] <nil>
}

// List makes slices.
func ExampleList() {
	fmt.Println(List(nil, []int{1, 2, 3}))
	// Output: [1 2 3] <nil>
}

// Stack joins tensors of one shape along a new first dimension.
func ExampleStack() {
	batch, err := Stack(Tensor[float32]{}, []Tensor[float32]{
		{Data: []float32{1, 2}, Shape: []int{2}},
		{Data: []float32{3, 4}, Shape: []int{2}},
	})
	fmt.Println(batch.Shape, batch.Data, err)
	// Output: [2 2] [1 2 3 4] <nil>
}

// Frameworks take the Data and the Shape of a Tensor:
//
//	GoMLX            tensors.FromFlatDataAndDimensions(batch.Data, batch.Shape...)
//	Gorgonia         tensor.New(tensor.WithShape(batch.Shape...), tensor.WithBacking(batch.Data))
//	onnxruntime_go   ort.NewTensor(ort.NewShape(shape...), batch.Data), with the shape as int64
//
// Some frameworks copy Data and others do not, so recycle a batch when its
// tensor has been used.
func ExampleTensor() {
	image := Tensor[float32]{Data: []float32{1, 2, 3, 4, 5, 6}, Shape: []int{1, 2, 3}}
	fmt.Println("channels, rows and columns:", image.Shape, "the second row:", image.Data[3:6])
	// Output: channels, rows and columns: [1 2 3] the second row: [4 5 6]
}

// Pad makes rows of one length of sequences that differ in length.
func ExamplePad() {
	batch, err := Pad(-1)(Padded[int]{}, [][]int{{1, 2, 3}, {4}})
	fmt.Println(batch.Shape, batch.Data, err)
	// Output: [2 3] [1 2 3 4 -1 -1] <nil>
}

// A Padded batch is a tensor, and the length of each sequence.
func ExamplePadded() {
	batch, err := Pad('.')(Padded[rune]{}, [][]rune{[]rune("hello"), []rune("I")})
	fmt.Println(string(batch.Data), batch.Lengths, err)
	// Output: helloI.... [5 1] <nil>
}

// CollatePair makes a batch of each part of a Pair.
func ExampleCollatePair() {
	collate := CollatePair(Pad(0), List[string])
	samples := []Pair[[]int, string]{{[]int{1, 2}, "a"}, {[]int{3}, "b"}}
	batch, err := collate(Pair[Padded[int], []string]{}, samples)
	fmt.Println(batch.First.Data, batch.Second, err)
	// Output: [1 2 3 0] [a b] <nil>
}

// Indices, Map and Batch make a loader's batches. The first comes sooner,
// because all workers fetch its samples.
func ExampleBatch() {
	data := Slice[string]{"a", "b", "c", "d", "e"}
	samples := Map(Indices(Random(data.Len(), 1)), 8, data.Get)
	for batch, err := range Batch(samples, 2, List[string]).Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [c b] <nil>
	// [a e] <nil>
	// [d] <nil>
}

// Unbatch lets batch sizes differ between stages: fetch in batches of 4, train
// in batches of 3.
func ExampleUnbatch() {
	ids := Batch(Indices(Sequential(10)), 4, List[int])
	rows := Map(ids, 2, func(_ context.Context, ids []int) ([]string, error) {
		rows := make([]string, len(ids)) // one query for all of them
		for j, id := range ids {
			rows[j] = fmt.Sprint("row ", id)
		}
		return rows, nil
	})
	batches := Batch(Unbatch(rows), 3, List[string])
	for batch, err := range batches.Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [row 0 row 1 row 2] <nil>
	// [row 3 row 4 row 5] <nil>
	// [row 6 row 7 row 8] <nil>
	// [row 9] <nil>
}

// ## worker.go: who loads

// Map calls a function for each item, here in two goroutines. The results keep
// the order.
func ExampleMap() {
	words := Slice[string]{"7", "8", "nine"}
	parsed := Map(Indices(Sequential(words.Len())), 2, func(_ context.Context, i int) (int, error) {
		return strconv.Atoi(words[i])
	})
	for n, err := range parsed.Epoch(context.Background(), 0) {
		fmt.Println(n, err)
	}
	// Output:
	// 7 <nil>
	// 8 <nil>
	// 0 dataloader: epoch 0, the item before pos 3: Map: strconv.Atoi: parsing "nine": invalid syntax
}

// Prefetch reads the stages before it ahead, in a goroutine of their own, which
// begins and ends with the loop.
func ExampleStream_Prefetch() {
	loaded := Map(Indices(Sequential(3)), 0, func(_ context.Context, i int) (int, error) {
		time.Sleep(time.Millisecond) // while the loop trains
		return i, nil
	}).Prefetch(2)
	for i, err := range loaded.Epoch(context.Background(), 0) {
		fmt.Println(i, err)
	}
	// Output:
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
}

// ## dataloader.go: all of it together

// The zero Options load one sample a batch, in order, in the loop's own
// goroutine.
func ExampleOptions() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5, 6}, List[int], Options{
		BatchSize: 3, Shuffle: true, Seed: 1, Workers: 2, DropLast: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [0 5 3] <nil>
	// [1 6 4] <nil>
}

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

// NewBatchFunc makes a loader of a function that fills a whole batch, as for
// one query of a database. The memory of dst comes from Recycle.
func ExampleNewBatchFunc() {
	table := []string{"a", "b", "c", "d", "e"}
	query := func(ctx context.Context, dst []string, ids []int) ([]string, error) {
		dst = dst[:0]
		for _, id := range ids {
			dst = append(dst, table[id])
		}
		return dst, nil
	}
	loader, err := NewBatchFunc(len(table), query, Options{BatchSize: 2, Shuffle: true})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [b c] <nil>
	// [a d] <nil>
	// [e] <nil>
}

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
			fmt.Println("epoch", epoch, batch, err)
		}
	}
	// Output:
	// epoch 0 [5 4 0 2 3 1] <nil>
	// epoch 0 [5 4 0 2 3 1] <nil>
	// epoch 1 [1 2 0 4 3 5] <nil>
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

// At is the cursor of a step, if nothing else was saved.
func ExampleDataLoader_At() {
	loader, err := New(Slice[string]{"a", "b", "c", "d", "e"}, List[string], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	at := loader.At(0, 1) // after one step
	for batch, err := range loader.Run(context.Background(), &at) {
		fmt.Println(batch, err)
	}
	// Output:
	// [c d] <nil>
	// [e] <nil>
}

// Len is the number of batches in an epoch.
func ExampleDataLoader_Len() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4}, List[int], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(loader.Len())
	// Output: 3
}

// Batch loads a batch by its number. It disturbs no training loop, so an
// evaluation may use it in the middle of one.
func ExampleDataLoader_Batch() {
	loader, err := New(Slice[int]{0, 1, 2, 3}, List[int], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		last, err := loader.Batch(ctx, 0, loader.Len()-1)
		fmt.Println("train", batch, "evaluate", last, err)
	}
	// Output:
	// train [0 1] evaluate [2 3] <nil>
	// train [2 3] evaluate [2 3] <nil>
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

// A cursor that was saved as JSON resumes the epoch in another process, here as
// one of four ranks with smaller batches.
func ExampleCursor() {
	saved := `{"epoch":0,"pos":8,"state":{"by":"Sequential(24)"}}`
	data := Func(24, func(ctx context.Context, i int) (int, error) { return i, nil })
	for rank := range 4 {
		var at Cursor
		if err := json.Unmarshal([]byte(saved), &at); err != nil {
			log.Fatal(err)
		}
		loader, err := New(data, List[int], Options{BatchSize: 2,
			Rank: Rank{Index: rank, Count: 4}})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Run(context.Background(), &at) {
			fmt.Println("rank", rank, batch, err, at)
			break
		}
	}
	// Output:
	// rank 0 [8 12] <nil> {"epoch":0,"pos":16,"state":{"by":"Sequential(24)"}}
	// rank 1 [9 13] <nil> {"epoch":0,"pos":16,"state":{"by":"Sequential(24)"}}
	// rank 2 [10 14] <nil> {"epoch":0,"pos":16,"state":{"by":"Sequential(24)"}}
	// rank 3 [11 15] <nil> {"epoch":0,"pos":16,"state":{"by":"Sequential(24)"}}
}

// The cursor of a pipeline. Batch and Prefetch pass the cursor of Shuffle on,
// so pos counts samples, not batches. What Prefetch has read ahead is not in
// the cursor. The fields are
//
//	epoch    the epoch that is being read
//	pos      items that have left Shuffle
//	by       the stage that made the cursor; another one refuses it
//	n        items that have left since source: here source.pos + n = pos
//	source   the place in the source from which a resume reads again; absent at
//	         the start of epoch 0
//	again    items that a resume reads again: here after.pos − source.pos
//	after    where the source stands after these: its pos, a digest of its
//	         cursor, and the first source of all
func ExampleCursor_stream() {
	shuffled := Indices(Random(40, 1)).Shuffle(4, 2)
	batches := Batch(shuffled, 2, List[int]).Prefetch(2)
	var at Cursor
	for range batches.Run(context.Background(), &at) {
		if at.Pos == 20 {
			break
		}
	}
	fmt.Println(strings.ReplaceAll(at.String(), `,"`, ",\n\""))
	// Output:
	// {"epoch":0,
	// "pos":20,
	// "state":{"after":{"by":"Indices(Random(40, seed 1))",
	// "digest":"3930364e3ded63d2",
	// "pos":26},
	// "again":12,
	// "by":"Shuffle(4, seed 2), version 2",
	// "n":6,
	// "source":{"epoch":0,
	// "pos":14,
	// "state":{"by":"Indices(Random(40, seed 1))"}}}}
}

// Load reads the State of a stage of your own, which may come from a file.
func ExampleCursor_Load() {
	var at Cursor
	if err := json.Unmarshal([]byte(`{"epoch":0,"pos":2,"state":{"N":7}}`), &at); err != nil {
		log.Fatal(err)
	}
	var state struct{ N int }
	err := at.Load(&state)
	fmt.Println(state.N, err)
	// Output: 7 <nil>
}

// A cursor that does not fit the data and the options is refused.
func ExampleErrCursor() {
	loader, err := New(Slice[int]{0, 1, 2}, List[int], Options{})
	if err != nil {
		log.Fatal(err)
	}
	at := Cursor{Epoch: 6, Pos: 2, State: map[string]string{"by": "Sequential(4)"}} // of other data
	for _, err := range loader.Run(context.Background(), &at) {
		text, _, _ := strings.Cut(err.Error(), ";")
		fmt.Println(errors.Is(err, ErrCursor), text)
	}
	// Output: true dataloader: refused cursor {epoch 6, pos 2}: it was made by Sequential(4), this is Sequential(3)
}

// StreamOf makes a stream of a loader. Its items carry the cursor that follows
// them.
func ExampleStreamOf() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4}, List[int], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for item, err := range StreamOf(loader).Items(context.Background(), Cursor{Epoch: 7}) {
		fmt.Println(item.Value, item.Err, item.Next.Pos, err)
	}
	// Output:
	// [0 1] <nil> 2 <nil>
	// [2 3] <nil> 4 <nil>
	// [4] <nil> 5 <nil>
}

// A batch that cannot be loaded is a *SampleError in its place, and the loop
// may skip it. Any other error is the last.
func ExampleSampleError() {
	data := Func(6, func(ctx context.Context, i int) (int, error) {
		if i == 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	loader, err := New(data, List[int], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if bad := (*SampleError)(nil); errors.As(err, &bad) {
			fmt.Println("skipped batch", bad.Batch, "with sample", bad.Index, "because:", bad.Err)
			continue
		}
		fmt.Println(batch, err)
	}
	// Output:
	// [0 1] <nil>
	// skipped batch 1 with sample 3 because: unexpected EOF
	// [4 5] <nil>
}

// A panic in a Get is an error of its sample, with the stack.
func ExamplePanicError() {
	words := []string{"a", "b"}
	data := Func(3, func(ctx context.Context, i int) (string, error) { return words[i], nil })
	loader, err := New(data, List[string], Options{Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if bug := (*PanicError)(nil); errors.As(err, &bug) {
			fmt.Println("panic:", bug.Value, len(bug.Stack) > 0)
			continue
		}
		fmt.Println(batch, err)
	}
	// Output:
	// [a] <nil>
	// [b] <nil>
	// panic: runtime error: index out of range [2] with length 2 true
}

// Trace sees every batch: who loaded it, when, and how long the loop waited for
// it.
func ExampleTiming() {
	trace := func(t Timing) {
		inTime := !t.Received.Before(t.Done) && t.Wait >= 0
		fmt.Println("batch", t.Batch, "worker", t.Worker, "samples", t.Samples, "in time", inTime)
	}
	loader, err := New(Slice[int]{0, 1, 2}, List[int], Options{BatchSize: 2, Trace: trace})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// batch 0 worker -1 samples 2 in time true
	// [0 1] <nil>
	// batch 1 worker -1 samples 1 in time true
	// [2] <nil>
}

// Stats says where the time goes. Loading takes five times as long as training
// here: "10 batches, 100 samples (1600/s), …: the loader is the bottleneck,
// workers needed: 5".
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
	line := stats.String()
	fmt.Println(line[:strings.Index(line, " (")])
	// Output: 10 batches, 100 samples
}

// Progress(os.Stderr, …) shows a bar on a terminal, here with a loss. Anywhere
// else it writes a line every ten seconds, and a last line.
func ExampleProgress() {
	loader, err := New(Slice[int]{1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	var shown strings.Builder
	loss := 4.0
	text := func() string { return fmt.Sprint("loss ", loss) }
	batches := loader.Epoch(context.Background(), 0)
	for batch, err := range Progress(&shown, loader.Len(), batches, text) {
		fmt.Println(batch, err)
		loss /= 2
	}
	words := strings.Fields(shown.String())
	fmt.Println(words[:2], words[len(words)-2:])
	// Output:
	// [1 2] <nil>
	// [3 4] <nil>
	// [5] <nil>
	// [3/3 100%] [loss 0.5]
}

// ## tar.go: shards, and what files become

// pets opens a shard in memory, of a cat and a dog.
func pets(_ context.Context, _ string, offset int64) (io.ReadCloser, error) {
	shard := tarEntries("cat.txt=meow", "cat.cls=0", "dog.txt=woof", "dog.cls=1")
	return io.NopCloser(bytes.NewReader(shard[offset:])), nil
}

// Tar reads the records of shards in a row, as a stream.
func ExampleTar() {
	records, err := Tar([]string{"pets.tar"}, TarOptions{Open: pets})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		fmt.Printf("%s: %s %s %v\n", r.Key, r.Get("cls"), r.Get("txt"), err)
	}
	// Output:
	// cat: 0 meow <nil>
	// dog: 1 woof <nil>
}

// The zero TarOptions read every file of every shard, in the order given, with
// OpenShard.
func ExampleTarOptions() {
	records, err := Tar([]string{"a.tar", "b.tar", "c.tar"}, TarOptions{
		Shuffle: true, Seed: 1, Fields: []string{"txt"}, Open: pets,
	})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		fmt.Println(r.Shard, r.Key, len(r.Files), err)
	}
	// Output:
	// a.tar cat 1 <nil>
	// a.tar dog 1 <nil>
	// b.tar cat 1 <nil>
	// b.tar dog 1 <nil>
	// c.tar cat 1 <nil>
	// c.tar dog 1 <nil>
}

// A Record is the files of a shard whose names have the same key.
func ExampleRecord() {
	cat := Record{Key: "cat", Files: []File{{Name: "cls", Data: []byte("0")}}}
	fmt.Printf("%s %q\n", cat.Get("cls"), cat.Get("txt"))
	// Output: 0 ""
}

// A truncated shard yields its whole records and then one error, and the next
// shard follows.
func ExampleTarError() {
	truncated := func(ctx context.Context, name string, _ int64) (io.ReadCloser, error) {
		shard, err := pets(ctx, name, 0)
		return io.NopCloser(io.LimitReader(shard, 3500)), err
	}
	records, err := Tar([]string{"pets.tar"}, TarOptions{Open: truncated})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		if damage := (*TarError)(nil); errors.As(err, &damage) {
			fmt.Println("damaged:", damage.Shard, "at", damage.Entry, "with the rest:", damage.Rest)
			continue
		}
		fmt.Println(r.Key, err)
	}
	// Output:
	// cat <nil>
	// damaged: pets.tar at dog.txt with the rest: true
}

// OpenShard is the Opener of files and of http and https.
func ExampleOpenShard() {
	_, err := OpenShard(context.Background(), "no/such.tar", 0)
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	// Output: true
}

// An Opener reads from another store: name is a shard's, and the reader begins
// at the offset.
func ExampleOpener() {
	store := map[string][]byte{"pets/0.tar": tarEntries("cat.txt=meow")}
	var open Opener = func(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
		shard, found := store[name]
		if !found {
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
		return io.NopCloser(bytes.NewReader(shard[offset:])), nil
	}
	records, err := Tar([]string{"pets/0.tar"}, TarOptions{Open: open})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		fmt.Println(r.Key, err)
	}
	// Output: cat <nil>
}

// OpenTar reads the records of shards by index, so a loader can shuffle all of
// them.
func ExampleOpenTar() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "pets.tar")
	shard := tarEntries("cat.txt=meow", "cow.txt=moo", "dog.txt=woof")
	if err := os.WriteFile(name, shard, 0o666); err != nil {
		log.Fatal(err)
	}
	var data *TarDataset
	if data, err = OpenTar(name); err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	for i := range data.Len() {
		record, err := data.Get(context.Background(), i)
		fmt.Println(record.Key, string(record.Get("txt")), err)
	}
	// Output:
	// cat meow <nil>
	// cow moo <nil>
	// dog woof <nil>
}

// A TarWriter refuses a record that would be read back as another.
func ExampleTarWriter() {
	var shard bytes.Buffer
	w := NewTarWriter(&shard)
	write := func(to *TarWriter, key string) {
		fmt.Println(to.Write(Record{Key: key, Files: []File{{Name: "txt", Data: []byte("meow")}}}))
	}
	write(w, "pets/cat")
	write(w, "pets/cat.2")
	fmt.Println(w.Close(), shard.Len() > 0)
	// Output:
	// <nil>
	// dataloader: TarWriter: record "pets/cat.2": file "pets/cat.2.txt" would be read as field "2.txt" of record "pets/cat"
	// <nil> true
}

// Expand lists the names of shards.
func ExampleExpand() {
	shards, err := Expand("https://example.org/{train,valid}-{08..10}.tar")
	fmt.Println(strings.Join(shards, "\n"), err)
	// Output:
	// https://example.org/train-08.tar
	// https://example.org/train-09.tar
	// https://example.org/train-10.tar
	// https://example.org/valid-08.tar
	// https://example.org/valid-09.tar
	// https://example.org/valid-10.tar <nil>
}

// Decode makes of a file what its extension says.
func ExampleDecode() {
	for _, file := range []File{
		{Name: "cls", Data: []byte("7")},
		{Name: "json", Data: []byte(`{"legs": 4}`)},
		{Name: "cat.txt", Data: []byte("meow")},
		{Name: "x.json", Data: []byte("[4")},
	} {
		value, err := Decode(file.Name, file.Data)
		fmt.Printf("%T %v %v\n", value, value, err)
	}
	// Output:
	// int 7 <nil>
	// map[string]interface {} map[legs:4] <nil>
	// string meow <nil>
	// <nil> <nil> dataloader: Decode("x.json"): JSON value 1: unexpected EOF; its 2 bytes begin with "[4"
}

// ImageTensor makes a sample of an image: the planes red, green and blue, from
// 0 to 1. Stack makes a batch of samples.
func ExampleImageTensor() {
	img := image.NewNRGBA(image.Rect(0, 0, 2, 1))
	img.Set(0, 0, color.NRGBA{255, 51, 0, 255})
	img.Set(1, 0, color.White)
	t := ImageTensor(Tensor[float32]{}, img)
	fmt.Println(t.Shape, t.Data)
	// Output: [3 1 2] [1 1 0.2 1 0 1]
}

// # The tests of the second reading

// ## dataset.go: files and folders

// TestFiles checks which files the patterns match, and that a folder that
// cannot be read is an error if it could have some.
func TestFiles(t *testing.T) {
	for patterns, want := range map[string]string{
		"": ".git/config a.txt b.png cat/.hidden cat/1.png cat/2.png " +
			"cat/old/0.png dog/1.png dog/x/y/z.txt",
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
	for pattern, denied := range map[string]bool{"*/*.png": true, "**/*.png": true, "*.png": false,
		"c*/*.png": false} {
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
	for _, name := range strings.Fields("a.txt cat/2 cat/.3 cat/.old/1 cat/a/.4 cat/a/.b/5 " +
		"cat/a/6. cat-b/1 cat0/1 dog/x/y/z") {
		names[name] = &fstest.MapFile{}
	}
	for _, c := range []struct {
		fsys           fs.FS
		patterns, want string
	}{
		{closedFS{names, ".git"}, "",
			"[cat cat-b cat0 dog] [{cat/2 0} {cat/a/6. 0} {cat-b/1 1} {cat0/1 2} {dog/x/y/z 3}] " +
				"<nil>"},
		{names, "*/* .git/*", `pattern ".git/*": it matches no file`},
		{closed, "dog/1.png cat/o*/*", "[cat dog] [{cat/old/0.png 0} {dog/1.png 1}] <nil>"},
		{closed, "**/0* **/z.* */1*",
			"[cat dog] [{cat/1.png 0} {cat/old/0.png 0} {dog/1.png 1} {dog/x/y/z.txt 1}] <nil>"},
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
		{errorOf(Files(fstest.MapFS{"a": {Mode: fs.ModeDir}})),
			"Files: fstest.MapFS: there is no file"},
		{files("cow/*.png"), `Files: … pattern "cow/*.png": it matches no file`},
		{files(""), `Files: … pattern "": it matches no file`},
		{because(t, path.ErrBadPattern, files("a/[")), "Files: "},
		{folder(nil), "Folder … nil"},
		{because(t, fs.ErrNotExist, errorOf(Files(os.DirFS("nowhere")))),
			"dataloader: Files: nowhere: " + missing.Error()},
		{because(t, fs.ErrNotExist, folder(os.DirFS("nowhere"))), "Folder: nowhere: "},
		{folder(fstest.MapFS{"a.txt": {}}), "Folder: … no folder"},
		{folder(fstest.MapFS{"cat/1": {}, "dog": {Mode: fs.ModeDir}}),
			`Folder: fstest.MapFS: class "dog" has no file`},
	})
}

// TestFilesOnDisk checks that files are read when they are asked for, and which
// links are followed.
func TestFilesOnDisk(t *testing.T) {
	dir := t.TempDir()
	must(0, os.CopyFS(dir, fstest.MapFS{"cat/1": {Data: []byte("old")}, "cat/2": {},
		"cat/3": {Data: []byte("3")}, ".old/4": {}}))
	data := must(Files(os.DirFS(dir), "cat/*"))
	must(0, errors.Join(os.WriteFile(dir+"/cat/1", []byte("new"), 0o600), os.Remove(dir+"/cat/2")))
	equal(t, "file 1", must(data.Get(t.Context(), 0)), File{"cat/1", []byte("new")})
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
	equal(t, "through links", fmt.Sprint(found),
		fmt.Sprint([]File{{".old/4", nil}, {"cat/5", []byte("new")}, {"dog/4", nil}}))
	must(0, link("nowhere", "cow"))
	equal(t, "a broken link", errors.Is(errorOf(Files(os.DirFS(dir))), fs.ErrNotExist), true)
	equal(t, "a broken link as a class", errors.Is(errorOf(folder()), fs.ErrNotExist), true)
	equal(t, "a broken link that no pattern matches", must(folder("*/*")), labels)
}

// TestFileNames: a file whose name is not UTF-8 is listed, and its Get says why
// it cannot be read. A folder with such a name cannot be listed.
func TestFileNames(t *testing.T) {
	files := fstest.MapFS{"a.txt": {}, "\xff.txt": {}}
	data := must(Files(files))
	equal(t, "files", data.Len(), 2)
	equal(t, "its neighbor", errorOf(data.Get(t.Context(), 0)), nil)
	err := errorOf(data.Get(t.Context(), 1))
	saysAll(t, err, `"\xff.txt" is not UTF-8`, "rename it")
	files["\xff/b.txt"] = new(fstest.MapFile)
	saysAll(t, errorOf(Files(files)), `dataloader: Files: … "\xff" is not UTF-8`)
	equal(t, "files at the top", must(Files(files, "*.txt")).Len(), 2)
}

// ## What every stream promises

// TestStreams: each stage, alone and deep in others, keeps every promise of a
// stream, in epoch 0, whose cursors are nearly zero, and in epoch 2. What it
// yields in epoch 2 tells which epochs it has read.
func TestStreams(t *testing.T) {
	t.Parallel()
	spoiled := func([]int, []int) ([]int, error) { return []int{7}, errBad }
	several := func(_ context.Context, i int) ([]int, error) { return make([]int, i%3), nil }
	odd := func(i int) bool { return i%2 == 1 }
	empty, size := counting(0), Indices(sampler{n: 9, name: "größe", order: Sequential(9).Order})
	last, cycle, forever := MixOptions{Stop: StopAtLast}, MixOptions{Stop: CycleUntilLast},
		MixOptions{Stop: CycleForever}
	weighted := MixOptions{Weights: []float64{1, 3, .5}, Seed: 3, Stop: CycleUntilLast}
	deep := func(workers int) ints {
		s := Map(Mix(last, counting(13, 4).Prefetch(2), counting(5), counting(9, 0, 8)).Shuffle(4,
			1), workers, double)
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
			"[200 203 error Stream.OnError: EOF 205 error Stream.OnError: panic: ouch 207 error " +
				"item 8 is bad]"},
		{"Take", of(counting(9, 1).Take(3)), "[200 error item 1 is bad 202]"},
		{"Repeat", of(counting(2, 1).Repeat(3)),
			"[600 error item 1 is bad 700 error item 1 is bad 800 error item 1 is bad]"},
		{"Repeat forever", of(counting(2).Cycle().Take(5)), "[200 201 300 301 400]"},
		{"Chain", of(Chain(counting(2), empty, counting(3, 0))),
			"[200 201 error item 0 is bad 201 202]"},
		{"Zip", of(Zip(counting(4, 1), counting(3, 2))),
			"[{200 200} error item 1 is bad error item 2 is bad]"},
		{"Zip, second longer", of(Zip(counting(2), counting(3))), "[{200 200} {201 201}]"},
		{"Indices", of(Indices(OrderFunc(3, func(e int) []int { return []int{e, 0, 1} }))),
			"[2 0 1]"},
		{"Indices of a sampler that has grown", of(grown), "[0 1 2]"},
		{"Shuffle, greatest size", of(counting(9).Shuffle(math.MaxInt/4, 1)),
			"[201 208 205 204 203 207 200 202 206]"},
		{"Shuffle, endless", of(counting(4).Cycle().Shuffle(3, 1).Take(9)),
			"[201 200 203 202 300 301 303 400 302]"},
		{"Shuffle, in letters to be escaped", of(Zip(size, counting(9)).Shuffle(5, 6)), ""},
		{"Mix first", of(Mix(MixOptions{Stop: StopAtFirst}, letters("a"), letters("bB"),
			letters("cCc"))), "[a b c]"},
		{"Mix last", of(Mix(last, letters("a"), letters("bB"), letters("cCx"))), "[a b c B C x]"},
		{"Mix last, one empty", of(Mix(last, empty, counting(2))), "[200 201]"},
		{"Mix cycle", of(Mix(cycle, counting(1), counting(2), counting(3, 1))),
			"[200 200 200 300 201 error item 1 is bad 400 300 202 500 301]"},
		{"Mix forever", of(Mix(forever, counting(1), counting(2)).Take(7)),
			"[200 200 300 201 400 300 500]"},
		{"Mix by weight, cycle", of(Mix(weighted, counting(2), counting(6), counting(3))),
			"[200 200 201 200 202 203 204 205 201 300 301 201 302 300 303 304 301 305 400 401 " +
				"402 400 403 404 202 405 401 " +
				"500 501 500 502 503]"},
		{"Shard", of(Map(counting(8, 4).Shard(Rank{1, 3}, PadTail), 0, quick)),
			"[201 error item 4 is bad 207]"},
		{"Batch", of(Batch(counting(7, 4, 5), 2, List[int])),
			"[[200 201] [202 203] error item 4 is bad [206]]"},
		{"Batch, spoiled", of(Batch(counting(3, 2), 2, spoiled)),
			"[error Batch: bad sample error item 2 is bad]"},
		{"Unbatch", of(Unbatch(Batch(counting(5, 2), 2, List[int]))),
			"[200 201 error item 2 is bad 204]"},
		{"Unbatch, empty batches", of(Unbatch(Map(counting(4), 0, several))), "[0 0 0 0 0]"},
		{"nothing", of(Chain(Chain[int](), empty.Filter(odd), counting(3).Filter(func(int) bool {
			return false
		}), empty.Take(2),
			empty.Repeat(3), empty.Shuffle(5, 1), empty.Shard(Rank{1, 2}, PadTail),
			Unbatch(Batch(empty, 2, List[int])),
			Map(empty, 3, quick), empty.Prefetch(3))), "[]"},
		{"Shuffle of a Mix of Shuffles", of(Mix(last,
			slices.Repeat([]ints{counting(4).Shuffle(2, 1)}, 7)...).Shuffle(2, 3)), ""},
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
	// 0 to 3 workers; Filter and Shard keep the last item of their source
	for _, n := range []int{2, 5, 8, 14} {
		for _, source := range []ints{Indices(Sequential(6)),
			Unbatch(StreamOf(newLoader(t, numbers(6), Options{Workers: n / 4})))} {
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
			equal(t, "the end", fmt.Sprint(at, got[len(got)-1]),
				fmt.Sprint(Cursor{0, len(got) - 1, at.State}, "error ", errBad))
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
				equal(t, "whether items fail", strings.Contains(fmt.Sprint(want), "is bad"),
					source.bad != nil)
				for k, at := range all {
					got := resume(t, s, throughJSON(t, at))
					equal(t, fmt.Sprintf("after %d, with %v instead of %v", k, change[1],
						change[0]), got, want[k:])
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
		equal(t, fmt.Sprint("Unbatch, after ", k), resume(t, s, throughJSON(t, at)),
			want[max(min(k, 4), k-3):])
	}

	var gone []int
	there := Indices(Sequential(23)).Filter(func(i int) bool { return !slices.Contains(gone, i) })
	for name, s := range map[string]ints{"Unbatch": Unbatch(Batch(there, 4, List[int])),
		"Shuffle": there.Shuffle(5, 1)} {
		runRow(t, name, func(t *testing.T) {
			refusals, late := 0, upTo(23)[13:]
			for _, change := range [][2][]int{{nil, late}, {late, nil}, {nil, upTo(23)},
				{nil, {2}}, {nil, {10}}, {nil, {21}}} {
				gone = change[0]
				before, all := readAll(t, s), cursors(t, s)
				gone = change[1]
				now := sorted(readAll(t, s))
				for k, at := range all {
					got := outcomes(s.Run(t.Context(), &at))
					if k > 0 && len(got) == 1 &&
						strings.Contains(got[0], "the source has changed") {
						equal(t, "the cursor", at, all[k])
						refusals++
						continue
					}
					had := slices.DeleteFunc(slices.Clone(before[:k]),
						func(x string) bool { return !slices.Contains(now, x) })
					got = sorted(append(had, got...))
					equal(t, fmt.Sprintf("%v are gone, then %v, after %d", change[0], change[1],
						k), got, now)
				}
			}
			equal(t, fmt.Sprint("it may refuse what it has to read again, not ", refusals),
				refusals > 9 && refusals < 100, true)
		})
	}
}

// TestJoinedSources: a stage that reads items again may begin in a source that
// has ended by the cursor. With another source in its place the resume has
// exactly what is left of one of the two, or is refused; with its own it is
// never refused.
func TestJoinedSources(t *testing.T) {
	t.Parallel()
	ordered := func(order Sampler) lists {
		return Map(Indices(order), 0, func(_ context.Context, i int) ([]int, error) {
			return []int{i}, nil
		})
	}
	sequence := func(n int) lists {
		return Map(counting(n), 0, func(_ context.Context, i int) ([]int, error) {
			return []int{i % 100}, nil
		})
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
	others := listed(50, 6)
	cycle, forever := MixOptions{Stop: CycleUntilLast}, MixOptions{Stop: CycleForever}
	weighted := MixOptions{Weights: []float64{3, 1}, Stop: CycleForever}
	joins := func(s lists) map[string]lists {
		return map[string]lists{
			"Chain":              Chain(s, others),
			"Chain, second":      Chain(listed(40, 2), s, others),
			"Chain, nested":      Chain(Chain(s, listed(40, 2)), others),
			"Repeat":             s.Repeat(2),
			"Repeat, Chain":      Chain(s.Repeat(2), others),
			"endless":            Chain(s, listed(40, 2)).Cycle().Take(14),
			"endless, second":    Chain(listed(40, 3), s).Cycle().Take(18),
			"Mix":                Mix(MixOptions{}, s, others),
			"Mix, cycle":         Mix(cycle, Chain(s, listed(40, 1)), listed(50, 9)),
			"Mix, cycle, second": Mix(cycle, Chain(listed(40, 3), s), listed(50, 15)),
			"Mix, forever":       Mix(forever, Chain(s, listed(40, 1)), others).Take(16),
			"Mix, weights":       Mix(weighted, Chain(s, listed(40, 1)), others).Take(16),
			"mine":               counts(Chain(s, others)),
		}
	}
	again := func(s lists) map[string]lists {
		unbatched := func(size int) lists {
			return Map(Unbatch(Batch(s, size, List[[]int])), 0, quick)
		}
		first := func(_ context.Context, p Pair[[]int, []int]) ([]int, error) { return p.First, nil }
		return map[string]lists{
			"Shuffle":          s.Shuffle(4, 1),
			"Shuffle 2":        s.Shuffle(2, 7),
			"Shuffle, Shuffle": s.Shuffle(2, 1).Shuffle(3, 2),
			"Unbatch":          unbatched(6),
			"Unbatch, Shuffle": unbatched(3).Shuffle(2, 1),
			"Take, Shuffle":    s.Take(9).Shuffle(3, 1),
			"Shard, Shuffle":   s.Shard(Rank{0, 1}, UnevenTail).Shuffle(3, 1),
			"Zip, Shuffle":     Map(Zip(s, listed(70, 99)), 0, first).Shuffle(3, 1),
		}
	}
	exact, refusals, tried := 0, 0, 0
	alone := map[string][]string{} // the items of each first source, sorted
	for first, s := range firsts {
		alone[first] = sorted(runRank(t, s).items)
	}
	for join := range joins(others) {
		for name := range again(others) {
			runRow(t, join+", "+name, func(t *testing.T) {
				runs := map[string]rankRun{}
				for first, s := range firsts {
					if first == "empty" && join != "Chain" {
						continue // Repeat has no items, and Mix cannot cycle
					}
					runs[first] = runRank(t, again(joins(s)[join])[name])
				}
				for first, maker := range runs {
					for other, run := range runs {
						repeats := !strings.HasPrefix(join, "Chain") && join != "Mix" &&
							join != "mine"
						if repeats && !slices.Equal(alone[first], alone[other]) {
							continue // the epochs before the cursor had other items
						}
						for k, at := range maker.next {
							every := map[bool]int{true: 5,
								false: 60}[first == other] * unlessShort(2, 10)
							if tried++; tried%every > 0 && !*everyPipeline {
								continue
							}
							rest, refused := resumeInWords(t, run.stream, at)
							what := fmt.Sprintf("%s after %d, then %s, at %v: %q", first, k+1,
								other, at, rest)
							if refused {
								refusals++
								failIf(t, first == other, "its own is refused: %s", what)
								continue
							}
							exact++
							got := numbersIn(slices.Concat(maker.first(k+1), rest))
							sound := slices.Equal(got, numbersIn(run.items)) || first != other &&
								slices.Equal(got, numbersIn(maker.items))
							failIf(t, !sound, "%s\n got %q\nwant %q\n  or %q", what, got,
								numbersIn(run.items), numbersIn(maker.items))
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
	t.Parallel()
	const n = 7
	var sick atomic.Int64 // which item fails once; -1: none
	fails := func(i int) error {
		return map[bool]error{true: errBad}[sick.CompareAndSwap(int64(i), -1)]
	}
	load := func(_ context.Context, i int) (int, error) { return i, fails(i) }
	sequence := func(failed func(yield func(int, error) bool, err error) (more bool)) ints {
		return FromSeq(func(context.Context, int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := range n {
					if err := fails(i); err != nil && !failed(yield, err) || err == nil &&
						!yield(i, nil) {
						return
					}
				}
			}
		})
	}
	goesOn := sequence(func(yield func(int, error) bool, err error) bool { return yield(0, err) })
	ends := sequence(func(yield func(int, error) bool,
		err error) bool {
		yield(0, err)
		return false
	})
	dies := sequence(func(_ func(int, error) bool, err error) bool { panic(err) })
	names, shards := tenShards()
	open := func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		data := shards[name][offset:]
		if i, _ := strconv.Atoi(name[:1]); fails(i) != nil {
			return io.NopCloser(breaksAfter(data[:min(700, len(data))],
				func() error { return errBad })), nil
		}
		return io.NopCloser(bytes.NewReader(data)), nil
	}
	records := Map(tarFrom(open, names...), 0, func(_ context.Context, r Record) (int, error) {
		return int(r.Key[0])<<8 + int(r.Key[1]), nil
	})
	mapped, loader := Map(Indices(Random(n, 1)), 0, load),
		newLoader(t, Func(n, load), Options{BatchSize: 3})
	pairs := func(s ints) Stream[[]int] { return Batch(s, 2, List[int]) }
	for name, s := range map[string]ints{
		"FromSeq": goesOn, "FromSeq, ends": Map(ends, 2, quick), "FromSeq, dies": dies,
		"Shuffle, Map": mapped.Shuffle(2, 1), "Shuffle, dies": dies.Shuffle(2, 1),
		"Shuffle, Tar": records.Shuffle(3, 1), "Tar": records, "Unbatch": Unbatch(pairs(goesOn)),
		"Unbatch, dies":   Unbatch(pairs(dies)),
		"Unbatch, Tar":    Unbatch(Batch(records, 3, List[int])),
		"Unbatch, loader": Unbatch(StreamOf(loader)),
		"Mix":             Mix(MixOptions{}, mapped.Shuffle(2, 1), goesOn, dies.Shuffle(2, 2)),
		"Zip":             Map(Zip(dies.Shuffle(2, 1), mapped), 0, add),
		"Repeat":          goesOn.Repeat(2).Shuffle(2, 1), "Chain": Chain(mapped, dies),
		"two Shuffles": Unbatch(pairs(mapped.Shuffle(2, 1))).Shuffle(2, 2),
		"Shard":        mapped.Shuffle(2, 1).Shard(Rank{1, 2}, PadTail),
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
	err := ending(counting(3, 1).Run(t.Context(),
		&Cursor{Pos: 4, State: stageState{By: "FromSeq"}}))
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
	failedSeq := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] {
		return one(nested(ctx, 1))
	})
	function := Map(Indices(Sequential(4)), 0, nested)
	for _, c := range []refusal{
		{failure(t, loader), "batch 1, sample 3: bad sample"},
		{failure(t, Map(loader, 2, quick).Filter(func([]int) bool { return true }).Prefetch(2)),
			"batch 1, sample 3: bad sample"},
		{failure(t, loader.Repeat(2)), "the item before pos 2, sample 3: bad sample"},
		{failure(t, Zip(loader, loader.Take(1).Repeat(9)).Take(5)),
			"the item before pos 2, sample 3: bad sample"},
		{failure(t, counting(8, 3).OnError(func(*SampleError) error { return errBad })),
			"the item before pos 4: Stream.OnError: bad sample"},
		{failure(t, function),
			"the item before pos 2: Map: epoch 40, batch 77, sample 77: bad sample"},
		{failure(t, failedSeq),
			"the item before pos 1: FromSeq: epoch 40, batch 77, sample 77: bad sample"},
	} {
		runRow(t, c.want, func(t *testing.T) {
			equal(t, "the error", fmt.Sprint(c.err), "dataloader: epoch 5, "+c.want)
			equal(t, "is a SampleError", isSampleError(c.err), true)
			equal(t, "has its cause", errors.Is(c.err, errBad),
				strings.Contains(c.want, "bad sample"))
		})
	}
	fails := func(err error) ints {
		return counting(8, 3).OnError(func(*SampleError) error { return err })
	}
	// a pair has both causes
	because(t, errBad, because(t, fs.ErrExist, failure(t, Zip(fails(errBad), fails(fs.ErrExist)))))
}

// A refusedCursor is a cursor that a stream refuses with an ErrCursor, and what
// the error says.
type refusedCursor struct {
	s    ints
	from Cursor
	says string // between dots
}

// check lets the stream refuse the cursor, fresh and saved, alone, behind
// stages that pass cursors on, and in a Mix. The error has at most 340 bytes.
func (c refusedCursor) check(t *testing.T) {
	for _, from := range []Cursor{c.from, throughJSON(t, c.from)} {
		for k, s := range []ints{c.s, Map(Batch(c.s, 2, List[int]).Prefetch(2), 1, head),
			Mix(MixOptions{}, c.s)} {
			at := []Cursor{from, from, inMix(from, 1)}[k]
			before, err := at, ending(s.Run(t.Context(), &at))
			refusal{err, c.says}.check(t)
			equal(t, "whether it is an ErrCursor", errors.Is(err, ErrCursor), true)
			equal(t, "whether it is a SampleError", isSampleError(err), false)
			equal(t, "whether it is long", len(err.Error()) > 340, false)
			equal(t, "the cursor", at, before)
		}
	}
}

// checkRefused checks cursors, each as a subtest.
func checkRefused(t *testing.T, all []refusedCursor) {
	for _, c := range all {
		runRow(t, c.says, c.check)
	}
}

// inMix returns the cursor of a Mix of one source, after n draws.
func inMix(source Cursor, n int) Cursor {
	return Cursor{source.Epoch, 1, stageState{By: "Mix(1 in turn, stop at last)", N: n,
		Sources: []Cursor{source}, Ended: []bool{false}}}
}

// cursorAfter returns the cursor of a stream after n items.
func cursorAfter(t *testing.T, n int, s ints) Cursor { return cursors(t, s)[n] }

// firstsOf returns a loader of n samples as a stream of the first of each
// batch.
func firstsOf(t *testing.T, n int, opts Options) ints {
	return Map(StreamOf(newLoader(t, numbers(n), opts)), 0, head)
}

// inFours makes batches of four of a stream, and the stream of them again.
func inFours(s ints) ints { return Unbatch(Batch(s, 4, List[int])) }

// TestRefusedCursorsOfLoaders: a loader refuses the cursors of another order,
// seed, version or kind. A cursor made out of order fits only its own rank and
// batch size, also if nothing was ahead. Behind Shuffle, which reads again, the
// batch size counts, too.
func TestRefusedCursorsOfLoaders(t *testing.T) {
	after := func(n int, s ints) Cursor { return cursorAfter(t, n, s) }
	loader := func(opts Options) ints { return firstsOf(t, 20, opts) }
	base, own := Options{Shuffle: true, Seed: 1, BatchSize: 2},
		Options{BatchSize: 2, Unordered: true, Rank: Rank{0, 2}}
	at, ownAt := after(1, loader(base)), newLoader(t, numbers(20), own).At(0, 1)
	named := func(version string) Options {
		return Options{Shuffle: true, Seed: 1, BatchSize: 2, DataVersion: version}
	}
	for _, versions := range [][2]string{{"", "v1"}, {"v1", ""}, {"v1", "v1"}} {
		made := after(1, loader(named(versions[0])))
		equal(t, fmt.Sprint(versions), resume(t, loader(named(versions[1])), made),
			resume(t, loader(base), at))
	}
	batched := func(dropLast bool) Options {
		return Options{BatchSampler: Batches(Random(20, 1), 2, dropLast)}
	}
	sizes := func(size int) Options { return Options{BatchSize: size} }
	shuffled := func(size int) ints { return firstsOf(t, 36, sizes(size)).Shuffle(2, 1) }
	with := func(fields string) Cursor {
		return fromJSON(t, `{"epoch":0,"pos":2,"state":{"by":"Random(20, seed 1)","seed":1,`+fields+
			`}}`)
	}
	const ofRank, size = `"rank":{"Index":0,"Count":1}`, `"size":2`
	// steps done ahead
	done := func(spans string) Cursor { return with(`"done":` + spans + "," + ofRank + "," + size) }
	const isDamaged = "epoch 0, pos 2}: its state is damaged: steps that are done need a rank " +
		"and a size"
	checkRefused(t, []refusedCursor{
		{loader(named("v2")), after(1, loader(named("v1"))),
			`made with Options.DataVersion "v1", this loader has "v2"`},
		{loader(Options{Shuffle: true, Seed: 2, BatchSize: 2}), at,
			"epoch 0, pos 2 … Random(20, seed 1) … Random(20, seed 2)"},
		{loader(Options{Sampler: Random(19, 1), Seed: 1, BatchSize: 2}), at,
			"Random(20, seed 1) … this is Random(19, seed 1); use the same data and options, or " +
				"start at Cursor{Epoch: 0}"},
		// no String
		{loader(Options{BatchSampler: make(fixedBatches, 20)}), at,
			"Random(20, seed 1) … dataloader.fixedBatches(20)"},
		{loader(batched(true)), after(1, loader(batched(false))), "Batches … Batches"},
		{loader(Options{BatchSize: 2, Sampler: Random(20, 1)}), at,
			"Options.Seed 1 … Options.Seed 0"},
		{loader(base), Cursor{Pos: 21, State: at.State}, "pos 21 … at most 20"},
		{loader(base), Cursor{Pos: -1, State: at.State}, "pos -1 … must not be negative"},
		{loader(Options{BatchSize: 2, Rank: Rank{1, 2}}), ownAt,
			"made out of order by rank {0 2} with batches of 2"},
		{loader(Options{BatchSize: 4, Rank: Rank{0, 2}}), ownAt,
			"made out of order by rank {0 2} with batches of 2"},
		{loader(base), done("[[5,10]]"), "damaged … steps of 9"},
		{loader(base), done("[[0,2]]"), "damaged … [0 2]"}, // begins at step 0
		{loader(base), done("[[1,2],[2,3]]"), "damaged … [1 2] [2 3]"},
		{loader(base), done("[[5,4]]"), "damaged … [5 4]"},
		{loader(base), with(`"done":[[1,2]]`), isDamaged},
		{loader(base), with(`"done":[[1,2]],` + size), isDamaged},
		{Indices(Sequential(20)), after(1, loader(Options{})),
			"made by Sequential(20), this is Indices(Sequential(20))"},
		{loader(Options{}), after(1, Indices(Sequential(20))),
			"made by Indices(Sequential(20)), this is Sequential(20)"},
		{loader(named("v1")).Shuffle(2, 1), after(3, loader(named("")).Shuffle(2, 1)),
			"has changed, or only its Options.DataVersion " +
				"(leave a new one unset until the next epoch): it is"},
		{loader(sizes(8)).Shuffle(2, 1), after(3, loader(sizes(7)).Shuffle(2, 1)),
			"batches of 7, this is … batches of 8"},
		// both sizes divide 36
		{shuffled(4), after(11, shuffled(3)), "batches of 3, this is … batches of 4"},
	})
}

// TestRefusedCursors: a stage refuses the cursors of another one, and those of
// a source that has changed.
func TestRefusedCursors(t *testing.T) {
	s, odd := counting(9), func(i int) bool { return i%2 == 1 }
	after := func(n int, s ints) Cursor { return cursorAfter(t, n, s) }
	weighted := func(a, b float64) ints {
		return Mix(MixOptions{Weights: []float64{a, b}, Seed: 3}, s, s)
	}
	mixed := func(seed uint64) ints {
		return Mix(MixOptions{}, Indices(Random(9, seed)), s).Shuffle(4, 1)
	}
	// a stage of the user's, whose State has one field more
	mine := func(field string, value, pos int) ints {
		return NewStage(s, false, func(ctx context.Context, s ints,
			from Cursor) iter.Seq2[Item[int], error] {
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
	same := inFours(mine("version", 1, 7))
	equal(t, "mine, of the same version", resume(t, same, throughJSON(t, after(1, same))),
		resume(t, s, after(1, s)))
	// the source of ends has ended
	third, ends := after(3, inFours(s)), after(13, counting(20).Shuffle(40, 1))
	dealt := func(ranks int) ints { return counting(4).Shard(Rank{0, ranks}, UnevenTail) }
	checkRefused(t, []refusedCursor{
		{s.Take(4), after(1, s.Take(3)), "made by Take(3), this is Take(4)"},
		{s.Shuffle(3, 2), after(1, s.Shuffle(3, 1)), "Shuffle(3, seed 1) … Shuffle(3, seed 2)"},
		{Chain(s, s, s), after(1, Chain(s, s)), "Chain(2) … Chain(3)"},
		{weighted(2, 1), after(1, weighted(1, 2)), "seed 3 … [1 2] … seed 3 … [2 1]"},
		{Indices(Random(8, 1)), after(1, Indices(Random(9, 1))),
			"Random(9, seed 1) … Random(8, seed 1)"},
		{counting(3), after(1, s.Filter(func(i int) bool { return i > 5 })),
			"pos 7 … only 3 items"},
		{Unbatch(Batch(s, 2, List[int])), third, "the source has changed … with 2 … with 4"},
		{inFours(counting(0)), third,
			"the source has changed … it is FromSeq now, with 0 items up to pos 0, … with 4 up to pos 4"},
		{inFours(s.Filter(func(i int) bool { return i > 0 })), third,
			"the source has changed … with 4 items up to pos 5, … with 4 up to pos 4"},
		{counting(0).Shuffle(40, 1), ends, "the source has changed … it is"},
		{counting(22).Shuffle(40, 1), ends, "the source has changed … it is"},
		{counting(8).Shuffle(2, 0), after(9, counting(10).Shuffle(2, 0)),
			"with 4 items up to pos 8, … with 6 up to pos 10"},
		{counting(20).Filter(odd).Shuffle(9, 1),
			after(3, counting(20, 0, 4, 8, 12, 16).Filter(odd).Shuffle(9, 1)), "has changed"},
		{mine("version", 2, 7).Shuffle(4, 1), after(1, mine("version", 1, 7).Shuffle(4, 1)),
			"has changed … is mine … was mine"},
		{inFours(mine("again", 1, 8)), after(1, inFours(mine("again", 1, 7))),
			"has changed … is mine … was mine"},
		{dealt(3).Shuffle(2, 1), after(1, dealt(1).Shuffle(2, 1)),
			"ranks 1, batches of 1, this is Shuffle( … ranks 3, batches of 1"},
		{mixed(2), after(1, mixed(1)),
			"the source has changed … is Indices(Random(9, seed 2)) … was Indices(Random(9, seed 1))"},
	})
}

// TestRefusedCursorsOfNobody: a stage refuses cursors that no loop can have
// made.
func TestRefusedCursorsOfNobody(t *testing.T) {
	s, saved := counting(9), func(text string) Cursor { return fromJSON(t, text) }
	checkRefused(t, []refusedCursor{
		{s, Cursor{Epoch: math.MaxInt},
			"epoch and pos must not be negative, and epoch must be less than"},
		{s.Repeat(7), Cursor{Epoch: math.MaxInt / 3}, "the epoch is too far for Repeat(7)"},
		{s.Take(3), Cursor{Pos: 1}, "it has no State … a cursor of Run"},
		{s.Take(3), Cursor{Pos: 1, State: 7}, "does not fit"},
		{s.Take(3), saved(`{"epoch":0,"pos":1,"state":{}}`),
			"it was made by another stream, this is Take(3)"},
		{s.Take(3), saved(`{"epoch":0,"pos":4,"state":{"by":"Take(3)"}}`), "pos must be at most 3"},
		{Indices(Sequential(9)),
			saved(`{"epoch":0,"pos":10,"state":{"by":"Indices(Sequential(9))"}}`),
			"pos must be at most 9"},
		{Chain(s, s), saved(`{"epoch":0,"pos":1,"state":{"by":"Chain(2)","n":2}}`),
			"damaged: 2 is not one of 2 parts"},
		{s.Repeat(1), saved(`{"epoch":0,"pos":1,"state":{"by":"Repeat(1)","n":1}}`), "1 parts"},
		{inFours(s), saved(`{"epoch":0,"pos":1,"state":{"by":"Unbatch","n":4}}`),
			"the source has changed"},
		{inFours(s), saved(`{"epoch":0,"pos":3,"state":{"by":"Unbatch","n":99,"again":4}}`),
			"damaged"},
		{s.Shard(Rank{1, 3}, UnevenTail),
			saved(`{"epoch":0,"pos":2,"state":{"by":"Shard by steps","n":1048576}}`), "damaged"},
		{s.Shard(Rank{0, 3}, PadTail), saved(`{"epoch":0,"pos":1,"state":{"by":"Shard","n":2}}`),
			"made by Shard, this is Shard by steps"},
		{s.Shuffle(4, 1),
			saved(`{"epoch":0,"pos":1,"state":{"by":"Shuffle(4, seed 1), version 2","n":3}}`),
			"damaged"},
		{s.Shuffle(2, 1),
			saved(`{"epoch":0,"pos":1,"state":{"by":"Shuffle(2, seed 1), version 2"}}`), "damaged"},
		{s.Shuffle(math.MaxInt/4, 1), Cursor{Pos: 5*ceil(math.MaxInt/4*3, 8) + 1, State: stageState{
			By: fmt.Sprintf("Shuffle(%d, seed 1), version 2", math.MaxInt/4), N: 1}}, "damaged"},
		{s.Shuffle(2, 1), Cursor{Pos: math.MaxInt,
			State: stageState{By: "Shuffle(2, seed 1), version 2", N: 1}}, "damaged"},
		{Mix(MixOptions{}, s), inMix(Cursor{}, math.MaxInt), "damaged"},
		{s.Shuffle(4, 1),
			saved(`{"epoch":0,"pos":2,"state":{"by":"Shuffle(4, seed 1), version 2","n":1}}`),
			"damaged"},
		{s.Shuffle(4, 1),
			saved(`{"epoch":0,"pos":1,"state":{"by":"Shuffle(4, seed 1), version 2","n":1}}`),
			"the source has changed"},
	})
}

// TestRefusedCursorsOfTar: a Tar refuses the cursors of other shards, options
// and ranks, and damaged ones.
func TestRefusedCursorsOfTar(t *testing.T) {
	names, shards := tenShards()
	shards["ab"], shards["c"] = tarEntries("1.txt=", "2.txt="), tarEntries("3.txt=")
	tars := func(opts TarOptions, names ...string) ints {
		opts.Open = inMemory(shards)
		return Map(must(Tar(names, opts)), 0,
			func(context.Context, Record) (int, error) { return 0, nil })
	}
	tar, rank, last := cursorAfter(t, 3, tars(TarOptions{}, names...)), TarOptions{Rank: Rank{1, 4}},
		tarState{}
	lastAt := cursorAfter(t, 6, tars(rank, names...)) // of three shards
	must(0, lastAt.Load(&last))
	damaged := func(number int, offset int64, hashes int) Cursor {
		return Cursor{lastAt.Epoch, lastAt.Pos,
			tarState{By: last.By, ShardNumber: number, Offset: offset, Keys: make([]byte, hashes)}}
	}
	const otherTar = "it was made by Tar( … this is Tar( … use the same data and options"
	checkRefused(t, []refusedCursor{
		{tars(TarOptions{}, names[:9]...), tar, otherTar},
		{tars(TarOptions{}, append(names[1:10:10], names[0])...), tar, otherTar},
		{tars(TarOptions{Shuffle: true}, names...), tar, otherTar},
		{tars(TarOptions{}, "a", "bc"), cursorAfter(t, 1, tars(TarOptions{}, "ab", "c")), otherTar},
		{tars(TarOptions{Rank: Rank{2, 4}}, names...), lastAt,
			"rank 1 of 4), this is Tar( … rank 2 of 4): each rank needs the cursor that it saved " +
				"itself, of as many ranks; Example"},
		{tars(rank, names...), damaged(4, 0, 0), "damaged … 3 shards"},
		{tars(rank, names...), damaged(-1, 0, 0), "damaged … 3 shards"},
		{tars(rank, names...), damaged(2, -1, 0), "damaged … 3 shards"},
		{tars(rank, names...), damaged(2, 512, 9), "damaged … 3 shards"},
		{tars(rank, names...), damaged(2, 512, 264), "damaged … 3 shards"},
	})
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
				if n := min(len(got)-1, len(rest)); n >= 0 &&
					strings.HasPrefix(got[n], "refused ") {
					got, rest = got[:n], rest[:n]
				}
				failIf(t, !slices.Equal(got, rest) || len(rest) > 0 &&
					!strings.Contains(t.Name(), "/Mix"),
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
		"Stream.Filter: keep is nil":                 func() { s.Filter(nil) },
		"Stream.Take: n is -1, must not be negative": func() { s.Take(-1) },
		"Stream.Shard: Rank is {Index: 2, Count: 2}; … 0 to 1": func() {
			s.Shard(Rank{2, 2}, PadTail)
		},
		"Stream.Shard: the tail is 3, must be PadTail":         func() { s.Shard(Rank{}, 3) },
		"Stream.Repeat: times is 0, must be at least 1; Cycle": func() { s.Repeat(0) },
		"Stream.Cycle: the stream is the zero Stream":          func() { ints{}.Cycle() },
		"Stream.OnError: f is nil":                             func() { s.OnError(nil) },
		"Stream.Run: the stream is the zero Stream; look at": func() {
			ints{}.Run(t.Context(), new(Cursor))
		},
		"Stream.Items: the stream is the zero Stream; look at": func() {
			ints{}.Items(t.Context(), Cursor{})
		},
		"NewStream: items is nil": func() { NewStream[int](nil) },
		"NewStage: items is nil": func() {
			NewStage[int, int](s, false, nil)
		},
		"NewStage: the stream is the zero Stream": func() {
			NewStage[int, int](ints{}, false, nil)
		},
		"Stream.Shuffle: the size is 0, must be 1 to": func() { s.Shuffle(0, 1) },
		"Stream.Shuffle: the size is": func() {
			s.Shuffle(math.MaxInt/4+1, 1)
		},
		"Stream.Prefetch: n is 0, must be 1 to 16777216": func() { s.Prefetch(0) },
		"Stream.Prefetch: n is":                          func() { s.Prefetch(math.MaxInt) },
		"FromSeq: seq is nil":                            func() { FromSeq[int](nil) },
		"Indices: the sampler is nil":                    func() { Indices(nil) },
		"Map: workers is -1, must be 0 to":               func() { Map(s, -1, quick) },
		"Map: f is nil":                                  func() { Map[int, int](s, 1, nil) },
		"Batch: size is 0, must be positive":             func() { Batch(s, 0, List[int]) },
		"Batch: the Collate is nil": func() {
			Batch[int, []int](s, 1, nil)
		},
		"Mix: there is no source": func() { Mix[int](MixOptions{}) },
		"Mix: there are 1 weights for 2 sources": func() {
			Mix(MixOptions{Weights: []float64{1}}, s, s)
		},
		"Mix: Weights[1] is 0, must be positive and finite": func() {
			Mix(MixOptions{Weights: []float64{1, 0}}, s, s)
		},
		"Mix: Weights[0] is NaN": func() {
			Mix(MixOptions{Weights: []float64{math.NaN()}}, s)
		},
		"Mix: Weights[0] is +Inf": func() {
			Mix(MixOptions{Weights: []float64{math.Inf(1)}}, s)
		},
		"Mix: Stop is 4, must be StopAtLast":          func() { Mix(MixOptions{Stop: 4}, s) },
		"Mix: Stop is -1":                             func() { Mix(MixOptions{Stop: -1}, s) },
		"Chain: the stream is the zero Stream":        func() { Chain(s, ints{}) },
		"Mix: the stream is the zero Stream":          func() { Mix(MixOptions{}, s, ints{}) },
		"Unbatch: the stream is the zero Stream":      func() { Unbatch(lists{}) },
		"Zip: the stream is the zero Stream":          func() { Zip(s, ints{}) },
		"the loader is nil; look at the error of New": func() { StreamOf[int](nil) },
	})
	unordered := newLoader(t, numbers(3), Options{Unordered: true})
	saysAll(t, ending(StreamOf(unordered).Epoch(t.Context(), 0)),
		"Options.Unordered is no stream, because a resume could lose samples: use its Run")
	for _, stage := range stages {
		runRow(t, stage.name, func(t *testing.T) {
			name := stage.name + ": "
			if _, method := reflect.TypeFor[ints]().MethodByName(stage.name); method {
				name = "Stream." + name
			}
			saysAll(t, panicOf(func() { stage.of(ints{}, 0, func() ints { return s }) }),
				"dataloader: "+name, "stream", "is the zero Stream")
		})
	}
}

// TestStreamsWithoutItems: an endless stage whose source is empty cannot be
// continued, and stages behind it pass that error on. A context ends what
// yields nothing: empty epochs, and items that a resume skips.
func TestStreamsWithoutItems(t *testing.T) {
	empty, three, forever, equally := counting(0), counting(3), MixOptions{Stop: CycleForever},
		[]float64{1, 1, 1}
	for says, s := range map[string]ints{
		"Stream.Cycle: the stream": empty.Cycle(),
		"Mix: source 0":            Mix(forever, empty, three),
		"Mix: source 1":            Mix(MixOptions{Stop: CycleUntilLast}, three, empty),
		"Mix: source 2": Mix(MixOptions{Stop: CycleForever, Weights: equally}, three,
			three, empty),
	} {
		runRow(t, says, func(t *testing.T) {
			for _, s := range []ints{s, Map(s.Prefetch(2).Shuffle(2, 0), 2, quick)} {
				got := outcomes(s.Epoch(t.Context(), 2))
				equal(t, "the last", got[len(got)-1],
					"error dataloader: "+says+" has no items in epoch 2")
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBad)
	equal(t, "epochs", outcomes(Indices(Sequential(0)).Repeat(math.MaxInt).Epoch(ctx, 0)),
		[]string{"error bad sample"})
	far := Cursor{Pos: math.MaxInt / 2, State: stageState{By: "FromSeq"}}
	equal(t, "skipped", outcomes(counting(-1).Run(ctx, &far)), []string{"error bad sample"})
}

// ## sampler.go: Shuffle, Mix and Shard

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

// A rankStage is a deal or a stage of TestRanks, with its stream. It is inStep
// if any rank's cursor fits all ranks. It is whole if the items of all ranks
// together do not depend on the number of ranks.
type rankStage struct {
	name          string
	inStep, whole bool
	stream        lists
}

// rankDeals are the deals of TestRanks. Some have two sources, one of which is
// dealt out in another way, or not at all.
func rankDeals(n int, rank Rank, tail Tail) []rankStage {
	always, unlessUneven := true, tail != UnevenTail // in step
	outer, inner := aPartOf(rank)
	next := Rank{(rank.Index + 1) % rank.Count, rank.Count}
	last := Rank{rank.Count - 1 - rank.Index, rank.Count}
	shard := listed(0, n).Shard(rank, tail)
	names, shards := tenShards()
	tar := func(part Rank) lists {
		return Map(must(Tar(names[:n], TarOptions{Rank: part, Open: inMemory(shards)})), 0,
			func(_ context.Context, r Record) ([]int, error) {
				return []int{int(r.Key[0]-'0')*2 + int(r.Key[1]-'a')}, nil
			})
	}
	readers := Mix(MixOptions{}, tar(Rank{0, 2}), tar(Rank{1, 2})).Shuffle(2, 1)
	shuffled := loaded(n, Options{}).Shuffle(2, 1).Filter(func([]int) bool { return true })
	return []rankStage{
		{"Shard", always, true, shard},
		{"StreamOf", always, true, loaded(n, Options{Rank: rank, Tail: tail, Seed: 1<<63 + 1})},
		{"StreamOf in twos", always, false,
			loaded(n+3, Options{Rank: rank, Tail: tail, BatchSize: 2})},
		{"StreamOf with OnError", unlessUneven, false,
			loaded(n, Options{Rank: rank, Tail: tail, OnError: dropBad}, 1, 2)},
		{"Shard of Shard", unlessUneven, true,
			listed(0, n).Shard(outer, tail).Shard(inner, tail)},
		{"Shard of StreamOf", unlessUneven, true,
			loaded(n, Options{Rank: outer, Tail: tail}).Shard(inner, tail)},
		{"Chain of rotated ranks", unlessUneven, true,
			Chain(shard, listed(50, n).Shard(next, tail))},
		{"Shard of shuffled StreamOf", always, true, shuffled.Shard(rank, tail)},
		{"Shard of two readers", always, true, readers.Shard(rank, tail)},
		{"Chain of dealt and undealt", unlessUneven, false, Chain(shard, listed(50, 3))},
		{"Zip of undealt and dealt", always, false, Map(Zip(listed(50, n), shard), 0, joined)},
		{"Mix of reflected ranks", unlessUneven, true,
			Mix(MixOptions{}, shard, listed(50, n).Shard(last, tail))},
	}
}

// rankStages are the stages of TestRanks behind s, some of them a user's.
func rankStages(s lists, rank Rank, tail Tail) []rankStage {
	always, unlessUneven, never := true, tail != UnevenTail, false // in step
	concat := func(_ []int, all [][]int) ([]int, error) { return slices.Concat(all...), nil }
	alone := func(_ context.Context, i int) ([]int, error) { return []int{i}, nil }
	three, five := listed(100, 3), listed(100, 5).Shard(rank, tail)
	weights := []float64{2, 1}
	return []rankStage{
		{"Map", always, true, Map(s, 0, quick)},
		{"Prefetch", always, true, Map(s, 1, quick).Prefetch(1)},
		{"failing", always, true, Map(s, 0, failThirds)},
		{"Take", always, false, s.Take(2)},
		{"Zip", always, false, Map(Zip(three, s), 0, joined)},
		{"Zip of dealt", always, false, Map(Zip(s, five), 0, joined)},
		{"Batch", unlessUneven, false, Batch(s, 2, concat)},
		{"Shard", unlessUneven, false, s.Shard(Rank{0, 2}, tail)},
		{"Filter", never, true, s.Filter(notThirds)},
		{"Filter odd", never, true, s.Filter(odd)},
		{"OnError", never, true, Map(s, 0, failThirds).OnError(dropBad)},
		{"Unbatch", never, true, Map(Unbatch(s), 0, alone)},
		{"Repeat", unlessUneven, true, s.Repeat(2)},
		{"Chain of dealt", unlessUneven, true, Chain(s, three.Shard(rank, tail))},
		{"Chain", unlessUneven, false, Chain(s, three)},
		{"Chain, last", unlessUneven, false, Chain(listed(100, 2), s)},
		{"Chain of odd", never, false, Chain(s.Filter(odd), three)},
		{"Mix of dealt", unlessUneven, true, Mix(MixOptions{}, s, five)},
		{"Mix", unlessUneven, false, Mix(MixOptions{}, listed(100, 4), s)},
		{"Mix of odd", never, false, Mix(MixOptions{}, s.Filter(odd), three)},
		{"Mix by weight", unlessUneven, false, Mix(MixOptions{Weights: weights}, s, three)},
		{"Mix, first", unlessUneven, false, Mix(MixOptions{Stop: StopAtFirst}, s, three)},
		{"Mix, cycle", unlessUneven, false, Mix(MixOptions{Stop: CycleUntilLast}, three, s)},
		{"Shuffle", never, true, s.Shuffle(2, 1)},
		{"one's own, drops", never, true, drops(s)},
		{"one's own, passes on", always, true, passes(s)},
		{"one's own, counts", never, true, counts(s)},
	}
}

// passes is a stage of a user's that passes its items on.
func passes[T any](s Stream[T]) Stream[T] {
	return NewStage(s, true, func(ctx context.Context, s Stream[T],
		from Cursor) iter.Seq2[Item[T], error] {
		return s.Items(ctx, from)
	})
}

// drops is a stage of a user's that leaves out even lists, and passes the
// cursors of the others on.
func drops(s lists) lists {
	return NewStage(s, false, func(ctx context.Context, s lists,
		from Cursor) iter.Seq2[Item[[]int], error] {
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
	return NewStage(s, false, func(ctx context.Context, s lists,
		from Cursor) iter.Seq2[Item[[]int], error] {
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
	pipelines := func(rank Rank) map[string]lists {
		part, even := listed(0, 9).Shard(rank, UnevenTail), listed(0, 18).Shard(rank, DropTail)
		uneven := Options{Rank: rank, Tail: UnevenTail, OnError: dropBad}
		return map[string]lists{
			"Filter":    even.Filter(func([]int) bool { return true }),
			"OnError":   Map(Zip(listed(0, 9), even), 0, joined).OnError(dropBad),
			"Unbatch":   Batch(Unbatch(even), 1, List[int]),
			"Repeat(2)": part.Repeat(2),
			"Cycle":     part.Cycle().Take(9),
			"Chain(2)":  Chain(part, listed(0, 9)),
			"Mix":       Mix(MixOptions{}, part, listed(0, 9)),
			"Batch":     Unbatch(Batch(part, 2, List[[]int])),
			"Shard":     listed(0, 30).Shard(rank, UnevenTail).Shard(Rank{0, 2}, PadTail),
			"Shuffle":   even.Shuffle(3, 1),

			"OnError under UnevenTail": loaded(9, uneven),
		}
	}
	for stage := range pipelines(Rank{}) {
		runRow(t, stage, func(t *testing.T) {
			of := func(rank Rank) lists { return pipelines(rank)[stage] }
			behind := func(rank Rank) lists { return Map(of(rank).Take(5), 1, quick).Prefetch(2) }
			for k, of := range []func(rank Rank) lists{of, behind} {
				at := cursors(t, of(Rank{1, 2}))[2]
				for _, other := range []Rank{{0, 2}, {0, 1}, {1, 3}} {
					want := fmt.Sprintf("made by rank {1 2}, this is rank %v, and %s puts the "+
						"ranks out of step: "+
						"save one cursor for each rank, and resume as many ranks", other, stage)
					for _, from := range []Cursor{at, throughJSON(t, at)} {
						err := ending(of(other).Run(t.Context(), &from))
						saysAll(t, because(t, ErrCursor, err), want)
					}
				}
				equal(t, fmt.Sprint("its own rank, ", k), resume(t, of(Rank{1, 2}), at),
					readAll(t, of(Rank{1, 2}))[2:])
				all := cursors(t, of(Rank{1, 2}))
				last := all[len(all)-1].String()
				for item, err := range of(Rank{1, 2}).Items(t.Context(),
					throughJSON(t, all[len(all)-2])) {
					failIf(t, err != nil || item.Next.String() != last, "%v, and then %v, want %s",
						err, item.Next, last)
				}
			}
		})
	}
}

// TestOwnersBehind: what stands behind a stage that puts ranks out of step, and
// what does not, knows whose a cursor is.
func TestOwnersBehind(t *testing.T) {
	part := func(rank Rank) lists { return listed(0, 9).Shard(rank, UnevenTail) }
	filtered := part(Rank{1, 2}).Filter(func([]int) bool { return true })
	at := cursors(t, filtered.Take(9))[1]
	saysAll(t, ending(part(Rank{0, 2}).Take(9).Run(t.Context(), &at)),
		"made by rank {1 2}, and the ranks were out of step; here no stage puts ranks out of step")
	want := cursors(t, filtered)[1].String()
	inside := Map(listed(0, 1), 0, func(ctx context.Context, _ []int) ([]int, error) {
		for item := range filtered.Items(ctx, Cursor{}) { // a stream of its own
			equal(t, "the cursor of a stream in Map", item.Next.String(), want)
			break
		}
		return nil, nil
	})
	equal(t, "cursors of Map", len(cursors(t, inside)), 2)
}

// TestRanksReadOnce: no source is opened only to be asked for its ranks.
func TestRanksReadOnce(t *testing.T) {
	source := &feed{n: 9}
	cursors(t, Chain(source.stream().Shard(Rank{1, 2}, UnevenTail), source.stream()))
	equal(t, "how often a source was read", source.left.Load(), 2)
}

// TestOwnersOfLoaders: an error keeps its batch behind a stage that puts ranks
// out of step, and a loader with OnError under UnevenTail knows its own rank's
// cursors.
func TestOwnersOfLoaders(t *testing.T) {
	failing := loaded(9, Options{Rank: Rank{1, 2}}, 5).Filter(func([]int) bool { return true })
	failed := 0
	for _, err := range failing.Epoch(t.Context(), 0) {
		if bad := (*SampleError)(nil); errors.As(err, &bad) {
			failed++
			equal(t, "batch and sample", [2]int{bad.Batch, bad.Index}, [2]int{2, 5})
		}
	}
	equal(t, "failed batches", failed, 1)
	loader := func(index int) *DataLoader[[]int] {
		opts := Options{Rank: Rank{index, 2}, Tail: UnevenTail, OnError: dropBad}
		return newLoader(t, numbers(9), opts)
	}
	at := loader(1).At(0, 2)
	own := collect(t, loader(1).Run(t.Context(), ptr(at)))
	equal(t, "its own rank", own, [][]int{{5}, {7}})
	saysAll(t, ending(loader(0).Run(t.Context(), &at)),
		"made by rank {1 2}, this is rank {0 2}, and OnError under UnevenTail puts the ranks "+
			"out of step")
}

// TestRanks: whatever pipeline of at most two stages stands behind a deal, the
// cursor of any rank resumes a rank exactly where that rank would stand after
// as many steps, or is refused. Its own rank resumes it, and so do all ranks
// that stages leave in step. Resumed on another number of ranks nothing is lost
// and nothing comes twice, and the cursor of the only rank fits any number.
func TestRanks(t *testing.T) {
	t.Parallel()
	tried, counts := 0, map[bool]int{}
	defer func() { t.Logf("%d resumes were exact, %d refused", counts[false], counts[true]) }()
	deals, stages := len(rankDeals(4, Rank{0, 1}, PadTail)),
		len(rankStages(draws(1), Rank{0, 1}, PadTail))
	for deal := range deals {
		for first := range stages + 1 { // the last number is no stage
			for second := range stages + 1 {
				if first == stages && second < first {
					continue
				}
				for n := 4; n <= 7; n++ {
					for tail := range UnevenTail + 1 {
						tried++
						if !*everyPipeline && counter(1,
							uint64(tried))%uint64(unlessShort(1000, 3000)) > 0 {
							continue
						}
						p := newPipeline(deal, n, tail, counts)
						for _, stage := range []int{first, second} {
							if stage < stages {
								p.add(stage)
							}
						}
						runRow(t, p.name, p.check)
					}
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
	t.Parallel()
	exact, refusals := 0, 0
	pipelines := func(s, other lists) map[string]lists {
		return map[string]lists{
			"alone":          s,
			"Prefetch":       Map(s, 1, quick).Prefetch(2),
			"Filter":         s.Filter(func([]int) bool { return true }),
			"Unbatch":        Batch(Unbatch(s), 1, List[int]),
			"Shuffle":        s.Shuffle(2, 1),
			"Repeat":         s.Repeat(2),
			"Chain":          Chain(s, other),
			"Mix":            Mix(MixOptions{}, s, other),
			"mine":           counts(s),
			"Chain, Shuffle": Chain(s, other).Shuffle(2, 1),
		}
	}
	for name := range pipelines(draws(1), draws(1)) {
		runRow(t, name, func(t *testing.T) {
			for k := range 3 * 3 * 3 * 2 * unlessShort(5, 2) {
				before, after, size, tail, n := 1+k%3, 1+k/3%3, 1+k/9%3,
					[]Tail{PadTail, UnevenTail}[k/27%2], 4+k/54
				stream := func(rank Rank, size int) lists {
					load := func(first int) lists {
						data := Func(n, func(_ context.Context, i int) (int, error) {
							return first + i, nil
						})
						return StreamOf(newLoader(t, data,
							Options{BatchSize: size, Rank: rank, Tail: tail}))
					}
					return pipelines(load(0), load(50))[name]
				}
				var makers []rankRun
				var whole []string
				for index := range before {
					run := runRank(t, stream(Rank{index, before}, 2))
					makers, whole = append(makers, run), append(whole, run.items...)
				}
				for index, maker := range makers {
					for step, at := range maker.next {
						what := fmt.Sprintf("rank %d of %d after %d steps, resumed on %d ranks "+
							"in batches of %d: %v",
							index, before, step+1, after, size, at)
						var all []string
						for _, run := range makers {
							all = append(all, run.first(step+1)...)
						}
						anyRefused := false
						for other := range after {
							rest, refused := resumeInWords(t, stream(Rank{other, after}, size), at)
							own := other == index && before == after
							failIf(t, refused && own && size == 2, "%s: its own cursor is refused",
								what)
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
				for pos := from.Pos; yield(Item[int]{0, nil, Cursor{from.Epoch, pos + 1, 1}},
					nil); pos++ {
				}
			}
		})
		first(t, Map(Zip(counter, Indices(Sequential(9)).Shard(own, UnevenTail).Filter(every)), 0,
			add), 1)
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
		for range s.Run(t.Context(), ptr(throughJSON(t,
			Cursor{5, 2, &ownedState{"{1 2}", stageState{
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
// not, ends with an error, and has lost nothing until then. The cursors of one
// that is are those of its source.
func TestOneForOne(t *testing.T) {
	// stage reads the four items of a source, and yields after each, and after
	// the end, what the list for it says, with no cursors.
	stage := func(yields [5][]int) ints {
		return NewStage(counting(4), true, func(ctx context.Context, s ints,
			from Cursor) iter.Seq2[Item[int], error] {
			return func(yield func(Item[int], error) bool) {
				read := 0
				yieldAll := func() (more bool) {
					for _, i := range yields[read] {
						if !yield(Item[int]{Value: i}, nil) {
							return false
						}
					}
					read++
					return true
				}
				for _, err := range s.Items(ctx, from) {
					failIf(t, err != nil, "%v", err)
					if !yieldAll() {
						return
					}
				}
				yieldAll()
			}
		})
	}
	const says = "error dataloader: NewStage: the stage is not one for one, at "
	for _, c := range []struct {
		name   string
		yields [5][]int
		want   []string // before the error
	}{
		{"drops item 2", [5][]int{{0}, {1}, {}, {3}, {}}, []string{"0", "1"}},
		{"drops the last item", [5][]int{{0}, {1}, {2}, {}, {}}, []string{"0", "1", "2"}},
		{"yields an item twice", [5][]int{{0}, {1, 1}, {2}, {3}, {}}, []string{"0", "1"}},
		{"yields an item more", [5][]int{{0}, {1}, {2}, {3}, {9}}, []string{"0", "1", "2", "3"}},
		{"is an item behind", [5][]int{{}, {0}, {1}, {2}, {3}}, []string{}},
		{"reads all items first", [5][]int{{}, {}, {}, {}, {0, 1, 2, 3}}, []string{}},
	} {
		runRow(t, c.name, func(t *testing.T) {
			got := readAll(t, stage(c.yields))
			last := len(got) - 1
			equal(t, "before the error", got[:last], c.want)
			failIf(t, !strings.HasPrefix(got[last], says), "the last is %q, want %q", got[last], says)
		})
	}
	sound := cursors(t, stage([5][]int{{0}, {1}, {2}, {3}, {}}))
	equal(t, "cursors", fmt.Sprint(sound), fmt.Sprint(cursors(t, counting(4))))
	checkStream(t, passes(counting(9, 3)), 2)
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

// runRank reads epoch 0 of a rank's stream.
func runRank(t *testing.T, s lists) rankRun {
	run := rankRun{stream: s}
	for item, err := range s.Items(t.Context(), Cursor{}) {
		run.items = append(run.items, itemInWords(item, err))
		if err == nil {
			run.next = append(run.next, throughJSON(t, item.Next))
		}
	}
	return run
}

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

// newPipeline is the deal with that number.
func newPipeline(deal, n int, tail Tail, counts map[bool]int) pipeline {
	d := rankDeals(n, Rank{0, 1}, tail)[deal]
	return pipeline{
		name: fmt.Sprintf("%s, n %d, tail %d", d.name, n, tail),
		of:   func(rank Rank) lists { return rankDeals(n, rank, tail)[deal].stream },
		tail: tail, inStep: d.inStep, whole: d.whole, counts: counts,
	}
}

// add puts the stage with that number behind p.
func (p *pipeline) add(stage int) {
	before, tail := p.of, p.tail
	p.of = func(rank Rank) lists { return rankStages(before(rank), rank, tail)[stage].stream }
	s := rankStages(before(Rank{0, 1}), Rank{0, 1}, tail)[stage]
	p.name += ", " + s.name
	p.inStep = p.inStep && s.inStep
	p.whole = p.whole && s.whole
	p.rereads = p.rereads || s.name == "Shuffle" || s.name == "Unbatch"
}

// check resumes all cursors of 1 to 4 ranks on 1 to 4 ranks.
func (p pipeline) check(t *testing.T) {
	var runs [5][]rankRun // by the number of ranks
	for count := 1; count < len(runs); count++ {
		for index := range count {
			runs[count] = append(runs[count], runRank(t, p.of(Rank{index, count})))
		}
	}
	for count, makers := range runs {
		for index, maker := range makers {
			for k, at := range maker.next {
				what := fmt.Sprintf("%s: rank %d of %d after %d steps, %v", p.name, index, count,
					k+1, at)
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
			t.Fatalf("%s, at rank %d:\n got %q, refused %t\nwant %q", what, other, got, refused,
				want)
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
		if err != nil && (errors.Is(err, ErrCursor) ||
			strings.Contains(err.Error(), "before the cursor failed")) {
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
		for _, rank := range []Rank{{0, 0}, {0, 2}, {1, 2}, {0, 3}, {1, 3}, {2, 3}, {0, 4}, {1, 4},
			{2, 4}, {3, 4}} {
			for tail := PadTail; tail <= UnevenTail; tail++ {
				want := slices.Concat(expect(upTo(n), 0, Options{Rank: rank, Tail: tail})...)
				got := checkStream(t, counting(n).Shard(rank, tail), 0)
				equal(t, fmt.Sprintf("%d items, %+v, tail %d", n, rank, tail), fmt.Sprint(got),
					fmt.Sprint(want))
			}
		}
	}
	source := &feed{n: 8}
	// 4 items the first time, then none
	source.before = func(_ context.Context, i int) { source.n -= 4 * max(0, 1-i) }
	got := readAll(t, source.stream().Shard(Rank{2, 3}, PadTail))
	equal(t, "shorter", fmt.Sprint(got),
		"[2 error dataloader: Stream.Shard: epoch 0 has become shorter while it was read]")
	breaks := &feed{n: 4}
	breaks.before = func(context.Context, int) { panicIf(breaks.left.Load() > 0, "read again") }
	got = readAll(t, breaks.stream().Prefetch(1).Shard(Rank{2, 3}, PadTail))
	equal(t, "broken", fmt.Sprint(got),
		"[2 error dataloader: the stream: panic: dataloader: read again]")
}

// ## worker.go: Map, Prefetch, and functions and readers that die

// draws is a stream of lists, without numbers, of n items, and drawOne adds a
// random number to a list.
func draws(n int) lists {
	return Map(Indices(Sequential(n)), 0, func(context.Context, int) ([]int, error) {
		return nil, nil
	})
}

func drawOne(ctx context.Context, drawn []int) ([]int, error) {
	return append(slices.Clone(drawn), Rand(ctx).Int()), nil
}

// drawn are the numbers that three Maps behind s draw, three for each item that
// has not failed.
func drawn(t *testing.T, ctx context.Context, s lists, workers, epoch int) []int {
	t.Helper()
	three := Map(Map(Map(s, workers, drawOne), workers, drawOne), workers, drawOne)
	return slices.Concat(collect(t, three.OnError(dropBad).Epoch(ctx, epoch))...)
}

// TestRandInMap: the random numbers in f depend on the seed of the context, the
// item's epoch and place, and the Map, and not on the number of workers. The
// same holds for a loader's samples, inside and outside a Cache.
func TestRandInMap(t *testing.T) {
	const n = 20
	nothing := Func(n, func(context.Context, int) ([]int, error) { return nil, nil })
	cached := Transform(Cache(Transform(Cache(Transform(nothing, drawOne)), drawOne)), drawOne)
	var all []int
	for epoch := range 3 {
		once := drawn(t, t.Context(), draws(n), 0, epoch)
		equal(t, "2 workers", drawn(t, t.Context(), draws(n), 2, epoch), once)
		all = append(all, once...)
		all = append(all, drawn(t, WithSeed(t.Context(), 1), draws(n), 2, epoch)...)
		loader := newLoader(t, cached, Options{Workers: epoch, Seed: uint64(epoch)})
		loaded := slices.Concat(samples(t, loader, epoch)...)
		equal(t, "different numbers of a loader", distinct(loaded), 3*n)
	}
	equal(t, "different numbers", distinct(all), 3*2*3*n)
	sameSeed := StreamOf(newLoader(t, Transform(nothing, drawOne), Options{}))
	both := slices.Concat(collect(t, Map(Unbatch(sameSeed), 0, drawOne).Epoch(t.Context(), 0))...)
	equal(t, "different numbers behind a loader", distinct(both), 2*n)
}

// TestRandOfRanks: ranks never draw the same random numbers, whatever deals the
// items out. Straight behind Shard an item has the numbers that it has without
// ranks.
func TestRandOfRanks(t *testing.T) {
	const n = 20
	items, four := draws(n), Rank{0, 4}
	names, shards := tenShards()
	tar := func(rank Rank) lists {
		records := must(Tar(names, TarOptions{Rank: rank, Open: inMemory(shards)}))
		return Map(records, 0, func(context.Context, Record) ([]int, error) { return nil, nil })
	}
	withoutNumbers := func(context.Context, []int) ([]int, error) { return nil, nil }
	pipelines := map[string]func(rank Rank) lists{"Tar": tar}
	for deal, d := range rankDeals(10, four, DropTail) {
		for stage, s := range rankStages(d.stream, four, DropTail) {
			pipelines[d.name+", "+s.name] = func(rank Rank) lists {
				dealt := rankDeals(10, rank, DropTail)[deal].stream
				return rankStages(dealt, rank, DropTail)[stage].stream
			}
		}
	}
	for name, of := range pipelines {
		runRow(t, name, func(t *testing.T) {
			var ranks []int
			for index := range 4 {
				s := Map(of(Rank{index, 4}), 0, withoutNumbers)
				ranks = append(ranks, drawn(t, t.Context(), s, index%2, 0)...)
			}
			equal(t, "whether there are numbers", len(ranks) > 0, true)
			equal(t, "different numbers of ranks", distinct(ranks), len(ranks))
		})
	}
	alone := drawn(t, t.Context(), items, 0, 0)
	for rank := range 3 {
		of := drawn(t, t.Context(), items.Shard(Rank{rank, 3}, PadTail), 0, 0)
		for k, number := range of {
			if pos := 3*(k/3) + rank; pos < n {
				what := fmt.Sprint("number of position ", pos, " on three ranks")
				equal(t, what, number, alone[3*pos+k%3])
			}
		}
	}
}

// TestRandOfSources: the sources of a Mix draw numbers of their own, which do
// not depend on the other sources. Before a Map a source has none.
func TestRandOfSources(t *testing.T) {
	const n = 20
	source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] {
		return one(Rand(ctx).Int(), nil)
	})
	random, seeded := source.Repeat(n), WithSeed(t.Context(), 1)
	mixed := collect(t, Mix(MixOptions{}, random, random).Epoch(seeded, 0))
	equal(t, "different numbers of two sources", distinct(mixed), 2*n)
	for k, number := range collect(t, Mix(MixOptions{}, random, counting(n)).Epoch(seeded, 0)) {
		equal(t, "a source draws alone", number == mixed[k], k%2 == 0)
	}
	for workers := range 2 {
		err := ending(Map(source, workers, quick).Epoch(seeded, 0))
		saysAll(t, err, "Rand: the context is from no loader")
	}
}

// TestWorkersOfMap: all workers of a Map work, and each knows its number.
func TestWorkersOfMap(t *testing.T) {
	eachWorkers(t, []int{0, 1, 2, 3}, func(t *testing.T, workers int) {
		mapped := Map(Indices(Sequential(12)), workers,
			func(ctx context.Context, _ int) (int, error) {
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
	for what, die := range map[string]func(){
		"panic: ouch": func() { panic("ouch") }, "runtime.Goexit was called": runtime.Goexit,
	} {
		runRow(t, what, func(t *testing.T) {
			f := func(_ context.Context, i int) (int, error) {
				if i%100 == 1 {
					die()
				}
				return i, nil
			}
			source := (&feed{n: 1, before: func(ctx context.Context, i int) { f(ctx, i) }}).stream()
			failing := Map(source, 0, func(_ context.Context, i int) (int, error) {
				return i, errBad
			})
			atOnce := NewStream(func(context.Context, Cursor) iter.Seq2[Item[int], error] {
				die()
				return nil
			})
			alone, failed := "[error dataloader: the stream: "+what+"]",
				"[300 error Map: "+what+" 302]"
			broken := "[300 " + alone[1:]
			dies := func(s ints, want string) {
				t.Helper()
				inBubble(t, func(t *testing.T) {
					equal(t, "outcomes", fmt.Sprint(outcomes(s.Epoch(t.Context(), 3))), want)
				})
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
			// the caller may end its own goroutine, in which the loop runs
			if what != "panic: ouch" {
				return
			}
			dies(source, "[300 error dataloader: epoch 3: panic: ouch]")
			dies(atOnce, "[error dataloader: epoch 3: panic: ouch]")
			dies(counting(3).Filter(func(i int) bool { f(t.Context(), i); return true }),
				"[300 error Stream.Filter: panic: ouch 302]")
			dies(Indices(OrderFunc(2, func(int) []int { panic("ouch") })),
				"[error dataloader: Indices: epoch 3: panic: ouch]")
			each := func(_ int, samples []int) (int, error) { return f(t.Context(), samples[0]) }
			dies(Batch(counting(3), 1, each), "[300 error Batch: panic: ouch 302]")
			dies(Map(counting(3), 0, f), failed)
		})
	}
	bad := FromSeq(func(context.Context, int) iter.Seq2[int, error] {
		panic(&SampleError{Err: errBad})
	})
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
			s, other := FromSeq(func(context.Context, int) iter.Seq2[int, error] { return seq }),
				counting(9).Prefetch(2)
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
		m := &mixer[int]{opts: &MixOptions{Weights: weights}, srcs: sources, seed: seed,
			ended: ended}
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
	three, want := slices.Repeat([]ints{Indices(Sequential(4))}, 3),
		slices.Repeat([]int{0, 1, 2, 3}, 3)
	by := func(weights ...float64) []int {
		return collect(t, Mix(MixOptions{Weights: weights}, three...).Take(99).Epoch(t.Context(),
			0))
	}
	equal(t, "by large weights", by(most, most, most), by(1, 1, 1))
	equal(t, "by small weights", by(least, least, least), by(1, 1, 1))
	for _, weights := range [][]float64{{1e-300, 1e-300, 1e300}, {1e300, 1e-300, 1e-300},
		{least, most, most}, {most, least, 1}} {
		equal(t, fmt.Sprint("each item once, by ", weights), sorted(by(weights...)), sorted(want))
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
//		fmt.Printf(`"rest":%s},`+"\n", must(json.Marshal(shown(s)(&item.Next))))
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
		return must(Tar(names, TarOptions{Shuffle: true, Seed: 1, Rank: rank,
			Open: inMemory(shards)}))
	}
	tars := Mix(MixOptions{Stop: StopAtLast}, tar(Rank{0, 2}), tar(Rank{1, 2}))
	loader := newLoader(t, numbers(23), Options{BatchSize: 2, Shuffle: true, Seed: 7,
		Rank: Rank{1, 2}})
	unordered := newLoader(t, numbers(23), Options{BatchSize: 2, Shuffle: true, Seed: 7,
		Unordered: true})
	streamed := StreamOf(newLoader(t, numbers(23), Options{BatchSize: 3, Sampler: sampler}))
	ofRank := StreamOf(newLoader(t, numbers(23),
		Options{BatchSize: 2, Shuffle: true, Seed: 1<<63 + 1, Rank: Rank{1, 2}}))
	ofNested := counting(30).Shard(Rank{0, 1}, UnevenTail).Shard(Rank{1, 2}, UnevenTail)
	return map[string]func(*Cursor) []string{
		"FromSeq": shown(ten),
		"Indices": shown(Indices(sampler)),
		"Filter": shown(ten.Filter(func(i int) bool {
			return i%4 > 0
		})),
		"OnError":     shown(ten.OnError(dropBad)),
		"Map":         shown(Map(ten, 2, quick)),
		"Prefetch":    shown(ten.Prefetch(3)),
		"Batch":       shown(batched),
		"Take":        shown(ten.Take(8)),
		"Repeat":      shown(ten.Repeat(2)),
		"Chain":       shown(Chain(other, ten)),
		"Zip":         shown(Zip(ten, other)),
		"Unbatch":     shown(Unbatch(batched)),
		"Shuffle":     shown(ten.Shuffle(4, 1)),
		"Mix in turn": shown(Mix(MixOptions{Stop: StopAtLast}, other, ten)),
		"Mix in turn, cycle": shown(Mix(MixOptions{Stop: CycleUntilLast},
			other.Take(2), ten, other)),
		"Mix by weight":        shown(weighted(StopAtLast, ten, other)),
		"Mix by weight, cycle": shown(weighted(CycleUntilLast, ten, other)),
		"Mix in turn, first":   shown(Mix(MixOptions{Stop: StopAtFirst}, ten, other)),
		"Mix by weight, first": shown(weighted(StopAtFirst, ten, other)),
		"Mix in turn, forever": shown(Mix(MixOptions{Stop: CycleForever}, other,
			ten).Take(25)),
		"Shard":              shown(ten.Shard(Rank{1, 3}, PadTail)),
		"Tar":                shown(briefly(tar(Rank{}))),
		"Tar, a shard":       shown(briefly(tar(Rank{1, 2}))),
		"loader":             shown(loader),
		"loader, unordered":  shown(unordered),
		"loader as a stream": shown(streamed),
		"of a rank, filtered": shown(ofRank.Filter(func(b []int) bool {
			return b[0]%4 > 0
		})),
		"of nested ranks, filtered": shown(ofNested.Filter(func(i int) bool {
			return i%4 > 0
		})),
		"of a rank, in turn": shown(Mix(MixOptions{}, Unbatch(ofRank),
			other).Take(9)),
		"nested, no Shuffle":  shown(Batch(nested, 3, List[int]).Prefetch(2)),
		"Unbatch of a loader": shown(Unbatch(streamed)),
		"Unbatch of Unbatch":  shown(Unbatch(Batch(Unbatch(batched), 3, List[int]))),
		"Unbatch of Shuffle": shown(Unbatch(Batch(ten.Shuffle(4, 1), 4,
			List[int]))),
		"Unbatch of Mix by weight": shown(Unbatch(Batch(weighted(StopAtLast, ten, other), 4,
			List[int]))),
		"Unbatch of nested Shuffles": shown(Unbatch(Batch(ten.Shuffle(3, 1).Shuffle(2, 5), 3,
			List[int])).Shuffle(2, 3)),
		"Shuffle of Chain": shown(Chain(other, ten).Shuffle(5, 2)),
		"Shuffle of Mix": shown(Mix(MixOptions{Stop: StopAtLast}, other,
			ten).Shuffle(5, 2)),
		"Mix of Shuffles": shown(Mix(MixOptions{Stop: StopAtLast},
			other.Shuffle(3, 1), ten.Shuffle(4, 1))),
		"Shard of Shuffle": shown(ten.Shuffle(4, 1).Shard(Rank{1, 2},
			UnevenTail)),
		"Tar, shuffled, batched, ahead": shown(Batch(briefly(tar(Rank{}).Shuffle(6, 2)), 2,
			List[string]).Prefetch(2)),
		"Tar in turn, batched, unpacked": shown(Unbatch(Batch(briefly(tars), 3, List[string]))),
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
			block := strings.ToValidUTF8("\t"+strings.Join(append(outcomes, "the end"), "\n\t")+
				"\n", "?")
			block = strings.ReplaceAll(block, tar.ErrHeader.Error(), "tar.ErrHeader")
			text.WriteString(block)
			failIf(t, !*update && !strings.Contains(old, line+block), "this shard yields\n%s",
				block)
			if strings.Contains(line, "|") {
				return
			}
			for _, other := range otherHeaders(data) {
				got := append(readAll(t, tarOf(opts, other)),
					indexed(t, onDisk(t, "x.tar", other))...)
				want := slices.Concat(streamed, byIndex)
				place := regexp.MustCompile(`shard "[^"]*"|offset \d+`)
				all := func(outcomes []string) string {
					return place.ReplaceAllString(strings.Join(outcomes, "\n"), "")
				}
				equal(t, "other headers", all(got), all(want))
			}
		})
		whole = whole && text.Len() > before
	}
	if whole {
		goldenFile(t, "shards.txt", []byte(text.String()))
	}
}

// goldenFile compares data with a file of testdata, which -update rewrites.
func goldenFile(t testing.TB, name string, data []byte) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		must(0, os.WriteFile(name, data, 0o644))
	}
	if want, err := os.ReadFile(name); err != nil || !bytes.Equal(data, want) {
		t.Errorf("%s is not what it was; go test -update writes it", name)
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
		{"half", packed[:len(packed)/2], `error TarWriter closed?): unexpected EOF … record "a"`},
		{"no length", packed[:len(packed)-4], whole + "; error unexpected EOF"},
		{"checksum", withBytes(packed, len(packed)-6, string(packed[len(packed)-6]^1)),
			whole + "; error " + gzip.ErrChecksum.Error()},
		{"text behind", slices.Concat(packed, []byte("and something more")),
			whole + "; error what follows the compressed"},
		{"zeros behind", slices.Concat(packed, make([]byte, 300<<10)), whole},
		{"zeros and text behind", slices.Concat(packed, make([]byte, 300<<10), []byte("x")),
			whole + "; error what follows the compressed … " + gzip.ErrHeader.Error()},
		{"empty members", slices.Concat(bytes.Repeat(gzipped(nil), 300), packed, gzipped(nil)),
			whole},
		{"magic alone", []byte("\x1f\x8b"), "error unexpected EOF"},
	} {
		runRow(t, c.name, func(t *testing.T) {
			got, _ := checkShard(t, TarOptions{}, c.data)
			same(t, "compressed", got, c.want)
		})
	}
}

// TestTarNeighbors: in a larger shard a key that comes again is found if it is
// one of 32, also at a resume, and behind a stage that reads again. A cursor of
// before there were hashes says nothing of the keys.
func TestTarNeighbors(t *testing.T) {
	first, found := must(Expand("{0..47}.jpg=")), 0
	for i := range 47 {
		shard := tarEntries(append(slices.Clip(first), fmt.Sprint(i, ".txt="))...)
		s := tarOf(TarOptions{}, shard)
		all, got := cursors(t, s), readAll(t, s)
		for _, k := range []int{1, 20, 48} {
			equal(t, fmt.Sprint("from ", all[k]), resume(t, s, throughJSON(t, all[k])), got[k:])
		}
		if !strings.Contains(got[48], "comes again") {
			continue
		}
		if found++; found == 1 {
			checkStream(t, s.Shuffle(7, 1), 0)
		}
		older := Cursor{0, 20, tarState{By: all[20].State.(*tarState).By, Offset: 20 * 512}}
		equal(t, "older", resume(t, s, older)[28], fmt.Sprint(i, "{txt:}"))
	}
	equal(t, "found", found, 31) // the files of the 32nd are neighbors: 47
}

// TestTarFields shows that only the wanted fields are yielded, and that others
// are skipped without being read. An empty file is a field and a missing file
// is not.
func TestTarFields(t *testing.T) {
	data := tarEntries("a.png=1", "a.cls=2", "b.png=3", "c.cls=4",
		"c.big="+strings.Repeat("x", 1000), "c.\xe9=5")
	for _, c := range []struct {
		opts TarOptions
		want string
	}{
		{TarOptions{Fields: []string{"png"}}, "a{png:1}; b{png:3}; c{}"},
		// big is not read
		{TarOptions{Fields: []string{"CLS", "png"}, MaxRecord: 520},
			"a{png:1 cls:2}; b{png:3}; c{cls:4}"},
		{TarOptions{Fields: []string{}}, "a{}; b{}; c{}"},
		{TarOptions{Fields: []string{"\xe9"}}, "a{}; b{}; c{\xe9:5}"},
	} {
		runRow(t, fmt.Sprint(c.opts.Fields), func(t *testing.T) {
			same(t, "records", checkStream(t, tarOf(c.opts, data), 0), c.want)
		})
	}
	stream := tarFrom(opening(bytes.NewReader(tarEntries("a.txt="))), "x")
	if r := collect(t, stream.Epoch(t.Context(), 0))[0]; r.Get("txt") == nil ||
		r.Get("cls") != nil || r.Shard != "x" {
		t.Errorf("txt %v, cls %v, shard %q", r.Get("txt"), r.Get("cls"), r.Shard)
	}
	large := tarEntries("a.big="+strings.Repeat("x", 5<<20), "a.cls=1",
		"b.big="+strings.Repeat("x", 5<<20), "b.cls=2")
	// only the first can be skipped with a seek
	for _, shard := range [][]byte{large, gzipped(large)} {
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
			"Tar: 2 shards are too few for 3 ranks: leave TarOptions.Rank out and deal records " +
				"with Stream.Shard"},
		{fails(TarOptions{Rank: Rank{2, 2}}, "a", "b"), "Tar: Rank is {Index: 2, Count: 2}"},
		{fails(TarOptions{MaxRecord: -1}, "a"), "Tar: MaxRecord is -1, must not be negative"},
		{fails(TarOptions{}, "a", "http://h/a#1.tar"), `Tar: shard 1, "http://h/a": … write %23`},
		{fails(TarOptions{}, "http://h/100%.tar"), "Tar: shard 0, … two hexadecimal digits … %25"},
		{fails(TarOptions{Open: inMemory(nil)}, "s3://b/100%#1.tar"), ""},
		{fails(TarOptions{}, "100%#1.tar", "http://h/100%25%231.tar?a=%"), ""},
	})
	saysAll(t, errorOf(OpenShard(t.Context(), "file:///a#1.tar", 0)), `"file:///a": in a URL, #`)
}

// TestTarBadPAX: PAX records that are not valid are quoted, wherever they
// stand.
func TestTarBadPAX(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(0, w.WriteHeader(&tar.Header{Name: "a.txt", Mode: 0o444, Format: tar.FormatPAX,
		PAXRecords: map[string]string{"a.bc": "-512"}}))
	must(0, w.Close())
	bad := bytes.Replace(b.Bytes(), []byte("a.bc="), []byte("size="), 1)
	const want = `error its PAX records, "13 size=-512\n", … are not valid`
	for name, shard := range map[string][]byte{
		"at the start": bad, "after a record": slices.Concat(tarEntries("b.txt=")[:512], bad),
	} {
		same(t, name, tarOutcomes(t, inMemory(map[string][]byte{"x": shard}), "x"), want)
	}
}

// TestTarShards shows how shards are dealt out to ranks: in the order given or,
// in each epoch, in that of Random with the seed; then every Count-th.
func TestTarShards(t *testing.T) {
	names, shards := tenShards()
	for _, opts := range []TarOptions{{}, {Shuffle: true}, {Shuffle: true, Seed: 1},
		{Shuffle: true, Seed: 2}} {
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
						want = append(want, fmt.Sprintf("%da{txt:}", i),
							fmt.Sprintf("%db{txt:}", i))
					}
					equal(t, fmt.Sprint("epoch ", epoch),
						collect(t, stream.Epoch(t.Context(), epoch)), want)
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
	for _, again := range [][]byte{tarEntries("1.txt="+strings.Repeat("x", 999), "2.txt="),
		tarEntries("1.txt=")[:512]} {
		shards["ab"] = again
		same(t, "written again", resume(t, two, at),
			"error or the cursor was saved with another version")
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
	// neither bytes nor an error, between small reads and large ones
	stands := func() error { return nil }
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
		{"fails in c", reads(data[:2048+600], fails),
			`a{txt:1}; b{txt:2}; error entry "c.txt", offset 2048 … bad sample … record "c"`},
		{"denies once", reads(nil, deniesOnce), "error denied … offset 0"},
		{"fails in b", reads(otherHeaders(data)[0][:4096+700], fails),
			`a{txt:1}; error entry "b.txt", offset 4096 … bad sample`},
		{"panics in c", reads(data[:2048+600], panics),
			`a{txt:1}; b{txt:2}; error entry "c.txt" … panic: broken`},
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
			got := tarOutcomes(t, func(ctx context.Context, name string,
				offset int64) (io.ReadCloser, error) {
				if name == "x" {
					return c.open(ctx, name, offset)
				}
				return io.NopCloser(iotest.OneByteReader(bytes.NewReader(data))), nil
			}, "x", "y")
			same(t, "records", got, c.want+` … shard "x"; a{txt:1}; b{txt:2}; c{txt:3}`)
		})
	}
	// closed after a break, and when the archive cannot be read
	for _, shard := range [][]byte{data, nil} {
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
	shard := tarEntries("../../evil.txt=1", "/etc/evil.txt=2", "../evil.txt@/etc/passwd",
		"d/../../evil.cls=3")
	must(0, os.CopyFS(dir, fstest.MapFS{"x.tar": {Data: shard}}))
	const records = "../../evil{txt:1}; /etc/evil{txt:2}; d/../../evil{cls:3}"
	all := []string{in("missing.tar"), dir, pattern, in("x*"), in("[x]"), in("?"), name}
	got := checkStream(t, briefly(must(Tar(all, TarOptions{}))), 0)
	because(t, fs.ErrNotExist, failure(t, must(Tar(all, TarOptions{}))))
	same(t, "streamed", got, fmt.Sprintf("error shard %q; error shard %q, entry \"\", offset 0: ",
		all[0], dir)+
		strings.Repeat("; error Expand lists its names, or filepath.Glob", 4)+"; "+records)
	same(t, "indexed", indexed(t, name), records)
	found := slices.Concat(must(filepath.Glob(filepath.Dir(dir)+"/*")),
		must(filepath.Glob(dir+"/*")))
	equal(t, "files", found, []string{dir, name})

	_, err := OpenTar(pattern)
	saysAll(t, err, "Expand lists its names")
	equal(t, "a shard that was opened", tarOutcomes(t, opening(strings.NewReader("")), "{a}"),
		[]string{`error shard "{a}", entry "", offset 0: it has only 0 bytes, so it is no ` +
			`tar archive, or it has been truncated: ""; the shard is not read further`})
	same(t, "a query", tarOutcomes(t, inMemory(nil), "https://x/?y"),
		`error shard "https://x/": `+fs.ErrNotExist.Error())
	if e := (*TarError)(nil); !errors.As(err, &e) || e.Offset != -1 ||
		strings.Contains(got[0]+got[2]+err.Error(), "offset") {
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
	equal(t, "whether it can be read from the middle",
		errorOf(OpenShard(t.Context(), name, 512)) == nil, false)
	w := <-writer
	defer w.Close()
	equal(t, "whether the pipe is still open", errorOf(w.WriteString("x")) == nil, false)
	// also for reading, so that the open does not wait
	pipe := must(os.OpenFile(name, os.O_RDWR, 0))
	defer pipe.Close()
	must(pipe.Write(tarEntries("a.txt=1", "b.txt=2")[:1536]))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var got []string
	for v, err := range briefly(must(Tar([]string{name}, TarOptions{}))).Epoch(ctx, 0) {
		got = append(got, outcomes(one(v, err))...)
		// while the loop waits for the rest of b
		time.AfterFunc(time.Millisecond, func() { cancel(errBad) })
	}
	equal(t, "outcomes", got, []string{"a{txt:1}", "error " + errBad.Error()})
}

// TestTarContext shows that a context that ends is noticed in a shard without
// records, and in a shard without an end; and that it does not matter any more
// when the last record has been handed over.
func TestTarContext(t *testing.T) {
	for _, cause := range []error{errBad, io.EOF} {
		for _, block := range [][]byte{tarEntries("README=")[:512],
			gzipped(bytes.Repeat(tarEntries("README=")[:512], 2048))} {
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
			equal(t, "an endless shard", outcomes(stream.Epoch(ctx, 0)),
				[]string{"error " + cause.Error()})
		}
	}
	data := tarEntries("a.txt=1", "b.txt=2")
	packed := gzipped(data)
	// the last has an error to come
	for _, shard := range [][]byte{data, packed, withBytes(packed, len(packed)-6, "xxxx")} {
		stream := tarOf(TarOptions{}, shard)
		want := readAll(t, stream)
		inBubble(t, func(t *testing.T) {
			for k := range len(want) + 1 {
				checkStop(t, stream, 0, k, want, true)
			}
		})
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
	// in which headers fit, or do not
	for _, buffer := range []int{1 << 10, min(len(data)+16<<10, tarBuffer)} {
		ours, theirs := &tarReader{archive: bufio.NewReaderSize(bytes.NewReader(data), buffer)},
			tar.NewReader(bytes.NewReader(data))
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
			says := func(part string) bool {
				return got != nil && strings.Contains(got.Error(), part)
			}
			switch {
			case got == io.EOF && want == io.EOF || got != nil && got != io.EOF && want != nil &&
				want != io.EOF,
				says("end marker") || says("begins with zeros") || says("only 0 bytes") ||
					says("unexpected EOF"),
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
	got.begin = 0
	if got != want {
		t.Fatalf("entry %.200q, want %.200q; archive/tar has %.200q", fmt.Sprint(got),
			fmt.Sprint(want), fmt.Sprint(*h))
	}
	if want.kind != tar.TypeReg || h.Size > 1<<21 {
		return nil
	}
	data, wantErr := io.ReadAll(theirs)
	gotData, err := ours.readData()
	if wantErr == nil && err != nil || err == nil && !bytes.HasPrefix(data, gotData) ||
		wantErr == nil && len(gotData) != len(data) {
		t.Fatalf("entry %q has %d bytes and %v, archive/tar has %d and %v", got.name, len(gotData),
			err, len(data), wantErr)
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
	long := "bb-folder-number-0001/bb-folder-number-0002/bb-folder-number-0003/" +
		"bb-folder-number-0004/bb-folder-number-0005/bb-folder-number-0006/bb-folder-number-0007/"
	wanted := map[string]string{}
	for names, want := range map[string]string{
		"v7 oldgnu gnu ustar posix posix-global gzip bzip2 members": a + b + c,
		"xz zstd":                           "error compressed with xz or zstd … gzip",
		"dumpdir":                           "dump/" + a + "dump/" + b + "dump/" + c,
		"gnu-utf8 posix-utf8":               a + "größe/日本{cls:6 txt:größe\n}",
		"gnu-long oldgnu-long ustar-prefix": a + b + long + "long-name{cls:4 txt:long\n}; " + c,
		"posix-long": a + b + long + long +
			"long-name{cls:5 txt:longer\n}; " + c,
		"gnu-sparse posix-sparse-0.0 posix-sparse-0.1 posix-sparse-1.0": `error entry "s.bin" … ` +
			`tar --sparse … record "a" is left out`,
		"gnu-links posix-links": a + `error entry "b.txt" … it is a hard link to "a.txt"` +
			"; c{cls:3}; d/x{cls:7 txt:x\n}",
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
	mtime, path, long := x("mtime=1700000000.1234567"), x("path=b.txt"),
		h("L", "././@LongLink", name+"\x00")
	n := strings.Repeat("n", tarBuffer)
	for _, headers := range [][]byte{nil, mtime, slices.Concat(path, mtime), text(""),
		text("6 a=b\n"), text("07 a=b\n"),
		h("K", "", name), h("L", "", ""), h("L", "", "\x00b"), slices.Concat(long, h("L", "", "")),
		x("atime=1", "ctime=1.", "mtime=1.5", "uid=4000000", "gid=0", "uname=ä", "gname=b",
			"linkpath=c", "comment= d\n=e",
			"SCHILY.xattr.user.f=g", "LIBARCHIVE.creationtime=1"),
		withHeader(h("K", "", ""), 0, 108,
			"\x80\xff\xff\xff\xff\xff\xff\xff\x80\x00\x00\x00\x01\x00\x00\x00"),
	} {
		add("a.txt 600", headers)
	}
	file := h("0", "b.txt", "")
	for at, bytes := range map[int]string{100: "0000644x", 108: "x", 116: "8", 124: "\x80",
		136: "-1", 156: "5", 329: "x", 337: "x",
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
	for _, headers := range [][]byte{long, h("L", "", name), slices.Concat(h("K", "", "k"), long),
		slices.Concat(path, long),
		slices.Concat(long, path), withHeader(long, 0, 257, "ustar  \x00"),
		withHeader(long, 0, 257, "\x00")} {
		add(name+" 600", headers)
	}
	// These are left to archive/tar, which reads some of them: PAX records,
	// here without spaces; texts that are none; others.
	for _, records := range strings.Fields("path=b.txt|path= mtime= path=b\x00.txt uname=b\x00 " +
		"xattr=b\x00 xattr\x00=b " +
		"mtime=-1.5 mtime=.5 mtime=1.x mtime=1.: mtime=1a.5 mtime=1:.5 mtime=x atime=1.2.3 " +
		"ctime=1e9 mtime=12345678901234567890 " +
		"mtime=36893488147419103233 uid=18446744073709551617 uid=-1 uid=: mtime=: gid=1.5 " +
		"uid=x|uid=1 size=-1 " +
		"size=0x10 size=100 size=7|size=0 size=9223372036854775808 size=9223372036854775807 =b a " +
		"GNU.sparse.major=1|GNU.sparse.minor=0 GNU.sparse.name=b.txt " +
		"GNU.sparse.map=0,1|GNU.sparse.size=100 " +
		"GNU.sparse.offset=0|GNU.sparse.numbytes=1") {
		add("", x(strings.Split(records, "|")...))
	}
	for _, records := range []string{"5 a=\n", "4 a=\n", "7 a=b\n", "5 a=b\n", "99 a=b\n",
		"+6 a=b\n", " 6 a=b\n", "6 a=b\x00",
		"6 a=b ", "6 a=b\n\x00", "6", "2 \n", "3 =\n", "1 \n", "0 a=b\n",
		"99999999999999999999 a=b\n", "-6 a=b\n", "\n",
		"9 size= 1\n"} {
		add("", text(records))
	}
	for _, headers := range [][]byte{withHeader(long, 0, 108, "\xff"),
		withHeader(long, 0, 136, "\x80\xff\xff\xff\xff"),
		withHeader(long, 0, 108, "x"), withHeader(long, 0, 124, "\x80"),
		withBytes(path, 0, "other"),
		h("g", "", "6 a=b\n"), h("X", "", "6 a=b\n"), h("L", "", n+"n"), h("L", "", n+n+n+n+"n"),
		x("comment=" + n + n + n + n),
		slices.Concat(x("size=100"), mtime), slices.Concat(path, h("g", "", "6 a=b\n")),
		slices.Concat(path, h("5", "d/", "")),
		slices.Concat(x("linkpath=c"), h("2", "b.txt", "")),
		slices.Concat(h("K", "", name), long, h("1", "b.txt", "")),
		slices.Concat(long, make([]byte, 1024)),
		slices.Concat(x("path=d/"), h("\x00", "a.txt", "")),
		slices.Concat(path, h("\x00", "d/", "")),
	} {
		add("", headers)
	}
	return cases
}

// TestTarHeaders reads odd headers, whole and truncated: the reader agrees with
// archive/tar, and asks for more bytes as long as it may need them.
func TestTarHeaders(t *testing.T) {
	for format, at := range map[string]int{"oldgnu": 0, "gnu": 0, "ustar": 0, "posix": 0,
		"posix-global": 1024, "ustar-prefix": 0} {
		name, size, n := parseHeaders(archives()[format+".tar"][at:])
		equal(t, format, fmt.Sprintf("%s %d %t", name, size, n > 0), "a.cls 1 true")
	}
	for text, want := range map[string]int64{"": 0, "0": 0, "07": 7, "8": -1, "/": -1, "1 ": -1,
		"1a": -1, "-1": -1,
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
			failIf(t, got != c.fast, "%.100q: parsed as %.100q, want %.100q", c.headers[tarBlock:],
				got, c.fast)
			for end := range min(n, 4*tarBlock) {
				if _, _, more := parseHeaders(c.headers[:end]); got != "" &&
					(more <= end || more > n) {
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
		allocates(t, "a stream", 16<<20+(len(data)/tarBlock+1)*2*maxRecord,
			func() { want = readAll(t, stream) })
		k := 0
		for item := range stream.Items(t.Context(), Cursor{}) {
			if k++; k <= 8 || k > len(want)-8 {
				equal(t, "resumed", resume(t, stream, item.Next), want[k:])
			}
		}
		checkIndexed(t, data, readAll(t, tarOf(TarOptions{}, data)),
			indexed(t, onDisk(t, "x.tar", data)))
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
			t.Errorf("asked to keep the connection, %t, for another encoding, with a weak tag or "+
				"a referer: %v", !r.Close, r.Header)
		}
		s.asked <- strings.TrimSpace(r.Header.Get("Range") + " " + r.Header.Get("If-Range"))
		answer(len(s.asked), w, r)
	}))
	t.Cleanup(s.Close)
	s.web = webSettings{client: s.Client(), attempts: 6, stall: time.Minute}
	s.web.wait = func(_ context.Context, d time.Duration) error {
		s.waits = append(s.waits, d)
		return nil
	}
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
	open := func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		if name == "after" {
			return io.NopCloser(bytes.NewReader(tarEntries("z.txt=after"))), nil
		}
		return s.web.open(ctx, name, offset)
	}
	return tarOutcomes(t, open, s.URL+path, "after")
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
	forgets := inTurn(breaks, asking("If-Range", "", sends(data, "", 40000)),
		asking("If-Range", "", sends(data, `"two"`, -1)))
	target := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// the referer would hold the signature of the first request
		if r.Referer() != "" || !r.Close {
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
		{"breaks, and never gets further", asking("Range", "", breaks), 6,
			"attempt 6: unexpected EOF"},
		{"breaks before the first byte", sends(data, tag, 0), 6, "attempt 6: unexpected EOF"},
		{"not yet", inTurn(busy(503), busy(408), busy(429), busy(500), busy(504), good), 6, ""},
		{"no connection", func(int, http.ResponseWriter,
			*http.Request) {
			panic(http.ErrAbortHandler)
		}, 6, "attempt 6: EOF"},
		{"not found", status(404), 1, "404 "},
		{"forbidden later", inTurn(breaks, status(403)), 2, "403 "},
		{"nothing", status(204), 1, "204 "}, {"a range, unasked", status(206), 1, "206 "},
		{"not modified", status(304), 1, "304 "},
		{"changes its tag", tagged(`"%d"`, 30000), 2, "has changed"},
		{"changes its tag, and does not look", asking("If-Range", "", tagged(`"%d"`, 30000)), 2,
			"has changed"},
		{"changes its date", anew(func(n int) answer { return dated(int64(n)) }), 2, "has changed"},
		{"has only a date", inTurn(dated(1e9), func(n int, w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("If-Range"); got != date {
				t.Errorf("asks for a range of %q, want %q", got, date)
			}
			dated(1e9)(n, w, r)
		}), parts(30000), ""},
		{"forgets its tag", inTurn(breaks, asking("If-Range", "", sends(data, "", 40000)), good),
			3, ""},
		{"forgets its tag, and changes it", forgets, 3, "has changed"},
		{"changes its length", anew(func(n int) answer {
			return sends(data[:len(data)-n], "", 30000)
		}), 2, "has changed"},
		{"changes its weak tag", tagged(`W/"%d"`, 30000), 2, "has changed"},
		{"changes before the first byte", tagged(`"%d"`, 0), 2, "has changed"},
		{"has a weak tag", sends(data, `W/"one"`, 40000), parts(40000), ""},
		{"promises more than it has", inTurn(func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)+1000))
			w.Write(data)
		}, status(416)), 2, "416"},
		{"has a truncated shard", sends(data[:20480], tag, -1), 1, "unexpected EOF"},
		{"sends an earlier range", inTurn(breaks, asking("Range", "bytes=20480-", good)), 2, ""},
		{"sends a later range", inTurn(breaks, asking("Range", "bytes=40000-", breaks)), 2,
			`answers 206 with the range "bytes 40000-`},
		{"is empty in the end", inTurn(breaks, asking("Range", "", sends(nil, "", -1))), 2,
			"has changed"},
		{"sends more than it has promised", inTurn(breaks, flows(append(data, data...), 1<<20)), 2,
			"has changed"},
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
		{"redirects to no text", says("HTTP/1.1 302 Found\r\nLocation: /\x01?sig=secret"), 6,
			"attempt 6: the request has failed"},
		{"answers in words of its own", says("HTTP/1.1 404 No /x?sig=secret"), 1,
			"404 " + http.StatusText(404)},
		{"does not speak HTTP", says("no /x?sig=secret"), 6, "attempt 6: the request has failed"},
		{"ends badly",
			says("HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: \x01?sig=secret"), 6,
			"request has failed"},
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

// TestWebAnswers gives each cell of checkAnswer's table to it: to a request for
// byte 0 or 500 of an object of 1,000 bytes, with the validators of the first
// answer or others.
func TestWebAnswers(t *testing.T) {
	const all, rest, tail = "bytes 0-999/1000", "bytes 500-999/1000", "bytes 500-999/*"
	drops := map[string]int64{ // what is dropped of an answer, by what was asked, status and range
		"0 200 ": 0, "500 200 ": 500, "0 200 " + all: 0, "500 200 " + all: 500,
		"0 206 " + all: 0, "500 206 " + all: 500, "500 206 " + rest: 0, "500 206 " + tail: 0,
		"500 206 bytes 256-999/1000": 244, "500 206 bytes 0-999/*": 500,
	}
	ranges := []string{"", all, rest, tail, "bytes 256-999/1000", "bytes 600-999/1000",
		"bytes 0-99/1000", "bytes 0-999/*", "bytes */1000", "nonsense"}
	for k := range 2 * 2 * len(ranges) * 6 {
		asked, code := []int64{0, 500}[k%2], []int{200, 206}[k/2%2]
		contentRange, how := ranges[k/4%len(ranges)], k/4/len(ranges)
		o := &webObject{offset: asked, size: -1}
		if asked > 0 {
			o.size, o.tag, o.modified = 1000, `"a"`, "Monday"
		}
		resp := &http.Response{StatusCode: code, ContentLength: -1, Header: http.Header{}}
		validators := [][2]string{{`"a"`, "Monday"}, {`"a"`, "Tuesday"}, {`"b"`, "Monday"},
			{`W/"a"`, "Monday"}, {"", "Tuesday"}, {"", ""}}[how]
		resp.Header.Set("ETag", validators[0])
		resp.Header.Set("Last-Modified", validators[1])
		resp.Header.Set("Content-Range", contentRange)
		what := fmt.Sprint(asked, " ", code, " ", contentRange)
		want, sound := drops[what]
		changed := asked > 0 && how > 1 && how < 5 && (how != 3 || code == 200)
		_, err := o.checkAnswer(resp)
		what += fmt.Sprint(" with ", validators)
		failIf(t, (err == nil) != (sound && !changed), "%s: %v", what, err)
		equal(t, what+": changed", err == errChanged, sound && changed)
		if err == nil {
			equal(t, what+": bytes that are dropped", o.surplus, want)
		}
	}
	for _, c := range [][3]string{ // Retry-After, RateLimit, seconds
		{"", "", "0"}, {"7", "", "7"}, {"7", `"default";r=0;t=50`, "7"},
		{"", `"default";r=0;t=50`, "50"}, {"", `"default";r=3;t=50`, "0"},
		{"", `"a";r=5;t=90, "b"; r=0; t=20`, "20"}, {"", `"a";r=0;t=5000`, "120"},
		{"", `"a";r=0`, "0"}, {"", "r=0;t=-3", "0"},
	} {
		header := http.Header{"Retry-After": {c[0]}, "Ratelimit": {c[1]}}
		equal(t, fmt.Sprint(c), fmt.Sprint(retryTime(header).Seconds()), c[2])
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
		same(t, "of a shorter object", shorter,
			"error unexpected EOF … or the cursor was saved with another version")
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

// TestWebNever shows which errors cannot change, so that nothing is asked for
// again.
func TestWebNever(t *testing.T) {
	equal(t, "what is known of an error", redactError(fmt.Errorf("secret: %w", io.EOF)), io.EOF)
	busy := redactError(errors.New(http.StatusText(http.StatusBadGateway)))
	saysAll(t, busy, "502 ")
	equal(t, "whether it is for ever", errors.As(busy, new(permanentError)), false)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(407)
	}))
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
		{strings.Replace(s.URL, "http:", "https:", 1) + "/x.tar", http.ErrSchemeMismatch.Error(),
			nil},
		{"https://behind.a.proxy/x.tar", "407 ", nil},
	} {
		runRow(t, fmt.Sprintf("%T", c.as), func(t *testing.T) {
			w := s.web
			transport := &http.Transport{TLSClientConfig: new(tls.Config)}
			if strings.Contains(c.name, "proxy") {
				transport.Proxy = http.ProxyURL(must(url.Parse(proxy.URL)))
			}
			w.client = &http.Client{Transport: transport,
				CheckRedirect: func(*http.Request, []*http.Request) error { return c.redirect }}
			w.wait = func(context.Context, time.Duration) error {
				t.Errorf("%s is asked for again", c.name)
				return errBad
			}
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
		if user, password, _ := r.BasicAuth(); user != "user" || password != "secret" ||
			r.URL.RawQuery != "sig=secret" {
			t.Errorf("asked as %q with %q and %q", user, password, r.URL.RawQuery)
		}
		w.WriteHeader(404)
	})
	s.web.attempts = 1
	for _, c := range []struct {
		open             Opener
		name, safe, says string
	}{
		{s.web.open, strings.Replace(s.URL, "http://", "http://user:secret@", 1) +
			"/x.tar?sig=secret#secret", s.URL + "/x.tar", "404"},
		{s.web.open, "http://user:secret@127.0.0.1:1/x%2fy.tar?sig=secret",
			"http://127.0.0.1:1/x%2fy.tar", ""},
		{s.web.open, "http://user:secret@127.0.0.1:secret/x.tar", "http:(not a URL)",
			"attempt 1: this is not a URL"},
		{s.web.open, "http://user:sec%ret@x/", "http:(not a URL)", "attempt 1: this is not a URL"},
		{nil, "s3://user:secret@bucket/x.tar?sig=secret", "s3://bucket/x.tar",
			"http and https … Opener"},
		{nil, "pipe:curl -s https://user:secret@host/x.tar", "pipe:(not a URL)", "http and https"},
		{nil, "foo:bar://user:secret@host/x.tar", "foo:(not a URL)", "http and https"},
		{nil, "| curl -u user:secret https://host/x.tar", "|:(not a URL)", "http and https"},
		{nil, "a:b.tar", "a:b.tar", ""},
	} {
		runRow(t, strings.TrimPrefix(c.safe, s.URL), func(t *testing.T) {
			equal(t, c.name, redactURL(c.name), c.safe)
			same(t, c.name, tarOutcomes(t, c.open, c.name),
				fmt.Sprintf("error shard %q … %s", c.safe, c.says))
		})
	}
	for _, scheme := range []string{"https", "HTTPS", "s3"} {
		got := indexed(t, scheme+"://user:secret@host/x.tar?sig=secret")
		same(t, scheme, got, "error "+strings.ToLower(scheme)+"://host/x.tar … Tar reads URLs")
	}
	// Cursors still tell shards apart whose names are not shown.
	equal(t, "digests differ",
		hashNames([]string{"pipe:curl https://h/1.tar"}) != hashNames([]string{"pipe:curl " +
			"https://h/2.tar"}), true)
	equal(t, "signatures do not count", hashNames([]string{"https://h/1.tar?sig=1"}),
		hashNames([]string{"https://i/1.tar?sig=2"}))
}

// TestOpenShard shows which names OpenShard reads, from an offset: files, the
// URLs of files, the web, schemes in capitals. No name is executed.
func TestOpenShard(t *testing.T) {
	s := serveTar(t, sends([]byte("data"), "", -1))
	name := onDisk(t, "a b.tar", []byte("data"))
	// on Windows /C:/…
	escaped := "/" + strings.TrimPrefix(strings.ReplaceAll(filepath.ToSlash(name), " ", "%20"), "/")
	capitals := strings.Replace(s.URL, "http", "HTTP", 1)
	for _, name := range []string{capitals, "file://" + escaped, "FILE://localhost" + escaped,
		name} {
		r := must(OpenShard(t.Context(), name, 1))
		equal(t, name, string(must(io.ReadAll(r))), "ata")
		r.Close()
	}
	evil := filepath.Join(filepath.Dir(name), "evil")
	for _, name := range []string{"file://host/x.tar", "gs://host/x.tar", "http:///x.tar"} {
		saysAll(t, errorOf(OpenShard(t.Context(), name, 0)),
			"OpenShard reads files and http and https URLs")
	}
	for _, name := range []string{"-", name + "x", "pipe:touch " + evil, "|touch " + evil} {
		err := errorOf(OpenShard(t.Context(), name, 0))
		failIf(t, !errors.As(err, new(*fs.PathError)), "%s: %v, want that there is no such file",
			name, err)
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
	one := onDisk(t, "one.tar", tarEntries("d/a.txt=1", "d/a.CLS=2", "README=3",
		"b.bin="+strings.Repeat("x", 3000), "b.txt=4"))
	y, z := strings.Repeat("y", 1<<20), strings.Repeat("z", 5<<20)
	two := onDisk(t, "two.tar", tarEntries("c.txt=5", "c.bin="+y, "z="+z, "c.cls=6"))
	data := must(OpenTar(one, two, one))
	defer data.Close()
	equal(t, "Len", data.Len(), 5)
	want := indexed(t, one)
	want = slices.Concat(want, indexed(t, two), want)
	equal(t, "records", want[0], "d/a{txt:1 cls:2}")

	records := Transform(data, func(_ context.Context, r Record) (string, error) {
		if f := r.Files[0]; cap(f.Data) != len(f.Data) {
			return "", fmt.Errorf("field %s of %s may grow into the next", f.Name, r.Key)
		}
		return brief(r), nil
	})
	loader := newLoader(t, records, Options{BatchSize: 2, Workers: 4})
	for epoch := range 5 {
		equal(t, "loaded", samples(t, loader, epoch), want)
	}
	for _, i := range []int{-1, 5} {
		saysAll(t, errorOf(data.Get(t.Context(), i)), fmt.Sprintf("index %d", i), "5 samples")
	}
	equal(t, "the shard of record 3", must(data.Get(t.Context(), 3)).Shard, one)
	allocates(t, "a record of 1 MiB, with 5 MiB between its files", 2<<20,
		func() { must(data.Get(t.Context(), 2)) })
	data.Close()
	for i, offset := range map[int]int64{1: 3072, 2: 0} { // read at once, and file by file
		_, err := data.Get(t.Context(), i)
		if e := (*TarError)(nil); !errors.As(err, &e) || errors.Unwrap(e.Err) != os.ErrClosed ||
			e.Offset != offset {
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
		{because(t, fs.ErrNotExist, errorOf(OpenTar(one, one+"missing"))),
			"OpenTar: shard … one.tarmissing"},
		{errorOf(OpenTar(onDisk(t, "x.tar", gzipped(tarEntries("a.txt=1"))))),
			"x.tar … compressed … use Tar"},
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
	const entries = "a.txt=1 a.cls=2 b.txt=3 README=4 b.cls=5 c.txt=6"
	plain := tarEntries(strings.Fields(entries)...)
	with := func(old, new string) []byte { // instead of the old entries
		return tarEntries(strings.Fields(strings.ReplaceAll(entries, old, new))...)
	}
	// which is not read at once
	far := tarEntries("a.txt=1", "z="+strings.Repeat("z", 1<<20), "a.cls=2")
	check := func(shard []byte, others ...[]byte) (noticed int) {
		name := onDisk(t, "x.tar", shard)
		d := must(OpenTar(name))
		defer d.Close()
		sound := readDataset(t, d)
		for _, other := range others {
			must(0, os.WriteFile(name, other, 0o666))
			for i, got := range readDataset(t, d) {
				if strings.Contains(got, "the shard has changed") && !strings.Contains(got, "%!") {
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
		failIf(t, noticed < 100/step, "of %d bytes that were changed, %d were noticed",
			len(others), noticed)
	}
	for _, c := range []struct {
		name    string
		was, is []byte
		want    int
	}{
		{"a gains a file, b loses one", plain, with("b.txt=3", "a.json=3"), 2},
		{"size", plain, with("a.cls=2", "a.cls=22"), 1},
		{"name", plain, with("a.cls=2", "a.clz=2"), 1},
		{"c gains a file", plain, with("c.txt=6", "c.txt=6 c.cls=7"), 1},
		{"key", plain, with("b.", "B."), 1}, // a is as it was
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

// ## The writer

// TestTarWriter shows that records are read back as they were written, and that
// the same records make the same bytes.
func TestTarWriter(t *testing.T) {
	long, image, name := strings.Repeat("long/", 60)+"ü", strings.Repeat("x", 1000),
		strings.Repeat("x", 999_000)
	records := []Record{
		{Key: "b", Files: []File{{"txt", []byte("1")}, {"cls", []byte("2")}}},
		{Key: "./d/a", Shard: "another", Files: []File{{"seg.png", []byte(image)},
			{"__key__", nil}}},
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
		saysAll(t, w.Write(Record{Key: "e", Files: []File{{"txt", nil}}}), "TarWriter",
			"after close")
	}
	equal(t, "the same bytes", bytes.Equal(shards[0].Bytes(), shards[1].Bytes()), true)
	want := "b{cls:2 txt:1}; " + briefRecord("./d/a", "__key__", "", "seg.png", image) + "; " +
		long + "{txt:}; __m__x{json:{}}; " +
		briefRecord("y", "a", "1", name, "2")
	streamed, byIndex := checkShard(t, TarOptions{}, shards[0].Bytes())
	same(t, "streamed", streamed, want)
	same(t, "by index", byIndex, want)
	h := must(tar.NewReader(&shards[0]).Next())
	header := fmt.Sprintf("%s %o %d %q %d %s", h.Name, h.Mode, h.Uid, h.Uname, h.ModTime.Unix(),
		h.Format)
	equal(t, "a header", header, `b.cls 444 0 "" 0 USTAR`)
}

// TestTarWriterErrors shows which records are refused, without a byte written,
// and what the errors of a writer are.
func TestTarWriterErrors(t *testing.T) {
	var b bytes.Buffer
	w := NewTarWriter(&b)
	must(0, w.Write(Record{Key: "b", Files: []File{{"txt", nil}}}))
	before, long := b.Len(), strings.Repeat("x", 1<<20)
	const skipped = "would be skipped when it is read, as are hidden files, files without a dot, " +
		"and names like __meta__"
	for _, c := range []struct{ record, says string }{ // the key, a blank, the fields
		{"c", `record "c": it has no files`},
		{"b txt", `record "b": the shard has a record with this key already`},
		{" txt", `record "": file ".txt" would be skipped`},
		{"d/ txt", `file "d/.txt" would be skipped`},
		{"c.x txt", `file "c.x.txt" would be read as field "x.txt" of record "c"`},
		{"d/.c txt", `file "d/.c.txt" ` + skipped},
		{"__c__/d txt", `file "__c__/d.txt" ` + skipped},
		{"/c txt", `record "/c": the key must be a relative path`},
		{"d/../../c txt", `record "d/../../c": the key must be a relative path without ".."`},
		{"c\x00 txt", `file "c\x00.txt" must not have a NUL`},
		{"c t\x00t", `file "c.t\x00t" must not have a NUL`},
		{"c ", `field "" must not be empty`},
		{"c txt TXT", `file "c.TXT" would be read as field "txt"`},
		{"c a/b", `file "c.a/b" would be skipped`},
		{"c txt cls txt", `record "c": field "txt" comes twice`},
		{"y a " + long, "has 1048578 bytes, must have at most 1000000"},
		{long + " a txt", "must have at most 1000000"},
		{"y a .jpg", `field ".jpg" must be "jpg"`}, {"y a y.jpg", `field "y.jpg" must be "jpg"`},
		{"d/y a y.seg.png", `field "y.seg.png" must be "seg.png"`},
		{"d/y a d/y.jpg", `field "d/y.jpg" must be "jpg"`},
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
	saysAll(t, w.Write(Record{Key: "c", Files: []File{{"txt", nil}}}), "TarWriter", `record "c"`,
		"bad sample")
	saysAll(t, w.Close(), "TarWriter", "bad sample")
}

// ## Expand, Decode and ImageTensor

// TestExpand shows what patterns stand for, as in bash, and which patterns are
// errors.
func TestExpand(t *testing.T) {
	for pattern, want := range map[string]string{
		"train.tar": "train.tar", "": "", `a\b`: `a\b`,
		"train-{000..003}.tar": "train-000.tar train-001.tar train-002.tar train-003.tar",
		"{8..11}":              "8 9 10 11", "{08..11}": "08 09 10 11", "{001..3}": "001 002 003",
		"{1..03}": "01 02 03",
		"{0..2}":  "0 1 2", "{5..5}": "5", "{3..0}": "3 2 1 0", "{11..08}": "11 10 09 08",
		"{-1..1}":  "-1 0 1",
		"{-01..1}": "-01 000 001", "{1..-1}": "1 0 -1",
		"{a,b}{1,2}": "a1 a2 b1 b2",
		"{a,b}-{1..2}{x,y}.tar": "a-1x.tar a-1y.tar a-2x.tar a-2y.tar b-1x.tar b-1y.tar b-2x.tar " +
			"b-2y.tar",
		"{,x}": " x", "{1,2,}": "1 2 ", "{1..3,7}": "1..3 7",
		"{9223372036854775806..9223372036854775807}":   "9223372036854775806 9223372036854775807",
		"{-9223372036854775807..-9223372036854775808}": "-9223372036854775807 -9223372036854775808",
	} {
		runRow(t, pattern, func(t *testing.T) {
			equal(t, "names", strings.Join(must(Expand(pattern)), " "), want)
		})
	}
	const allowed, many = "must be a list such as {a,b}, or numbers such as {000..146}",
		"more than 1048576 names"
	const pairs = "braces must come in pairs, and must not be nested"
	for pattern, says := range map[string]string{
		"a{b": pairs, "a}b": pairs, "{a,b}}": pairs, "{{a,b}": pairs, "x{a,b}{": pairs,
		"{a,b}{1,2": pairs, "p{a,{b,c}d,}s": pairs,
		"x{{a,b}}y": pairs, "{1..{2,3}}": pairs, "}": pairs, "{": pairs, "{a}": `"{a}" ` + allowed,
		"{}":          `"{}" ` + allowed,
		"{000...146}": `"{000...146}" ` + allowed, "{000-146}": allowed, "{a..c}": allowed,
		"{a..3}": allowed, "{1..3..x}": allowed,
		"{0..10..5}": allowed, "{1..}": allowed, "{1..2}{a}": `"{a}" ` + allowed,
		"{1..99999999999999999999}": allowed,
		"{1..9223372036854775807}":  many, "{0..1048576}": many, "{-9223372036854775808..0}": many,
		"{1..2}{1..1024}{1..513}{1..2}": many, "{" + strings.Repeat(",", 1<<20) + "}": many,
		"{1..1025}{1..1024}": many,
	} {
		runRow(t, pattern, func(t *testing.T) {
			saysAll(t, errorOf(Expand(pattern)), "dataloader: Expand", says)
		})
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
		failIf(t, got != want || !fails && err != nil, "%s %.100q: %s and %v, want %s", name, data,
			got, err, want)
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
		{"png d.x/a.seg.PNG jpg", pngs, gray}, {"jpg JPEG", jpegs, gray},
		{"gif", gifs, "*image.Paletted (0,0)-(3,2)"},
		{"json", `{"a":[1,null]}`, "map[string]interface {} map[a:[1 <nil>]]"},
		{"jsn", " 12345678901234567890.10\n", "json.Number 12345678901234567890.10"},
		{"jsonl", "{\"a\":1}\n\n[2]\r\n9007199254740993",
			"[]interface {} [map[a:1] [2] 9007199254740993]"},
		{"jsonl", "", "[]interface {} []"},
		{"json", "\xef\xbb\xbf[\"\xc3\xa9\\ud800\"]", "[]interface {} [é\ufffd]"},
		{"json jsonl", "{\"a\":\"caf\xe9\"}", "error byte 9 of the JSON text, 0xe9, is not UTF-8"},
		{"txt text a.transcript", "text", "string text"},
		{"cls cls2 class index inx id", " 12\n", "int 12"}, {"count", "-1", "int -1"},
		{"bin README", "12", "[]uint8 [49 50]"}, {"TXT.GZ", gz("text"), "string text"},
		{"d.x/a.cls.gz", gz("1") + gz("2"), "int 12"},
		{"txt.gz", gz("1") + gz("") + gz("23") + gz(""), "string 123"},
		{"txt.gz", gz("text") + gz("x")[:20], "error unexpected EOF"},
		{"txt.gz", gz("te") + gz("xt") + strings.Repeat("\x00", 3000), "string text"},
		{"txt.gz", gz("text") + "\x00\x00x", "error " + gzip.ErrHeader.Error()},
		{"gz a.gz", gz("x"), "[]uint8 [120]"}, {"txt.gz.gz", gz(gz("text")), "string text"},
		{"png.gz", gz(pngs), gray},
		{"gif", gifOf(65535), "error 65535 × 65535 pixels, must have 1 to 134217728"},
		{"gif", gifOf(11586), "error pixels"}, {"gif", gifOf(11585), "error unexpected EOF"},
		{"gif", gifOf(1), "error unexpected EOF"},
		{"jpg", jpegOf("\xc0", 11586), "error pixels"},
		{"jpg", jpegOf("\xc0", 11585), "error damaged or truncated: its … unexpected EOF"},
		{"jpg", jpegs[:10], "error damaged or truncated: its 10 bytes … unexpected EOF"},
		{"cls", mark + "12", "int 12"},
		// progressive
		{"jpg", jpegOf("\xc2", 6689), "error 6689 × 6689 pixels, must have 1 to 44739242"},
		{"jpg", jpegOf("\xc2", 6688), "error unexpected EOF"},
		// A comment with the bytes of a marker, and bytes between the segments.
		{"jpg", jpegOf("\xfe\x00\x04\xff\xc2\xff\xc0", 11585), "error unexpected EOF"},
		{"jpg", jpegOf("\xfe\x00\x04\xff\xc2\xff\xc1", 11585), "error unexpected EOF"},
		{"jpg", jpegOf("\xfe\x00\x04\xff\xc0\xff\xc2", 6689), "error 6689 × 6689 pixels"},
		{"jpg", jpegOf("\x00\x07\xc0\xff\xd0\xff\xd7\xff\xff\xc2", 6689),
			"error 6689 × 6689 pixels"},
		{"jpg", strings.Replace(jpegs, "\x00\x02\x00\x03", "\x00\x00\x00\x03", 1),
			"error 3 × 0 pixels, must have 1"},
		{"jpg", strings.Replace(jpegs, "\x00\x02\x00\x03", "\x00\x02\x00\x00", 1),
			"error 0 × 2 pixels, must have 1"},
		{"a.png", "no image", `error its 8 bytes begin with "no image" … ` +
			image.ErrFormat.Error()},
		{"jpg", "RIFF\x24\x00\x00\x00WEBPVP8 and more", "error " +
			`whose decoder is imported … begin with "RIFF$\x00\x00\x00WEBPVP8 "`},
		{"gif", "", "error it is empty … " + image.ErrFormat.Error()},
		{"cls", "one", "error " + strconv.ErrSyntax.Error()},
		{"cls.gz", gz("one"), "error " + strconv.ErrSyntax.Error()},
		{"json", "{", "error unexpected EOF"}, {"json", "", "error 0 JSON values … it is empty"},
		{"json", "1 2", "error there are 2 JSON values"}, {"json", "1 }", "error JSON value 2: "},
		{"jsonl", "1\n\n[2\n", "error JSON value 2: unexpected EOF"},
		{"txt.gz", "not compressed", "error " + gzip.ErrHeader.Error()},
		{"txt.gz", "short", `error must be a gzip file, and its 5 bytes begin with "short"`},
		{"gz", "", "error must be a gzip file, and it is empty"},
		{"txt.gz", gz("text")[:20],
			"error of the gzip file of 20 bytes, after 4 decompressed ones: unexpected EOF"},
		{"txt.gz", gz("text") + "x", "error " + gzip.ErrHeader.Error()},
		{"txt.gz", gz("text") + "\x1f", "error EOF"},
		{"faiss.index x" + many + ".class", " \xca\xfe" + many,
			`error it must be an integer, is " \xca\xfexxx`},
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
		allocates(t, "a bomb", 1<<20, func() {
			saysAll(t, errorOf(decode(c.name, []byte(c.data), c.limit)), c.says)
		})
	}
}

// npy is an array file as NumPy writes it.
func npy(version byte, descr, fortran, shape, data string) string {
	return npyOf(version, fmt.Sprintf("{'descr': %s, 'fortran_order': %s, 'shape': %s, }", descr,
		fortran, shape), data)
}

// npyOf is an array file with any header.
func npyOf(version byte, header, data string) string {
	header += strings.Repeat(" ", 63-(len(header)+10)%64) + "\n"
	length := binary.LittleEndian.AppendUint16(nil, uint16(len(header)))
	if version > 1 {
		length = binary.LittleEndian.AppendUint32(nil, uint32(len(header)))
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
		{plain(1, "<f4", "(2, 1)", "\x00\x00\x80\x3f\x00\x00\x00\x40"),
			"Tensor[float32] {[1 2] [2 1]}"},
		{plain(2, ">f8", "(1,)", "\xbf\xf0\x00\x00\x00\x00\x00\x00"), "Tensor[float64] {[-1] [1]}"},
		{plain(3, "|b1", "(3,)", "\x00\x01\x01"), "Tensor[bool] {[false true true] [3]}"},
		{plain(1, "|u1", "(1, 2, 1)", "\x01\xff"), "Tensor[uint8] {[1 255] [1 2 1]}"},
		{plain(1, "|i1", "()", "\xff"), "Tensor[int8] {[-1] []}"},
		{plain(1, "<i2", "(1,)", "\x01\xff"), "Tensor[int16] {[-255] [1]}"},
		{plain(1, ">u2", "(1,)", "\x01\xff"), "Tensor[uint16] {[511] [1]}"},
		{plain(1, ">f2", "(3,)", "\x3c\x01\xfb\xff\x80\x00"),
			"Tensor[float32] {[1.0009766 -65504 -0] [3]}"},
		{plain(1, "<f2", "(3,)", "\x01\x80\xff\x03\x00\x04"),
			"Tensor[float32] {[-5.9604645e-08 6.097555e-05 6.1035156e-05] [3]}"},
		{plain(1, "<f2", "(3,)", "\x00\x7c\x00\xfc\x01\x7e"),
			"Tensor[float32] {[+Inf -Inf NaN] [3]}"},
		{plain(1, ">i4", "(1,)", "\xff\xff\xff\xfe"), "Tensor[int32] {[-2] [1]}"},
		{plain(1, "<u4", "(1,)", "\xff\xff\xff\xff"), "Tensor[uint32] {[4294967295] [1]}"},
		{plain(1, "<i8", "(1,)", "\xfe\xff\xff\xff\xff\xff\xff\xff"), "Tensor[int64] {[-2] [1]}"},
		{plain(1, ">u8", "(1,)", "\x00\x00\x00\x00\x00\x00\x00\x07"), "Tensor[uint64] {[7] [1]}"},
		{plain(1, "<f4", "(0, 5)", ""), "Tensor[float32] {[] [0 5]}"},
		// What NumPy reads, too. It refuses lists, false, and L in version 3.
		{npyOf(1, `{"shape":(2L,3L),"descr":"|u1","fortran_order":False}`, "abcdef"),
			"Tensor[uint8] {[97 98 99 100 101 102] [2 3]}"},
		{npyOf(2, "{'fortran_order':\tTrue ,\n'shape' :( 2 ,), 'descr':'>i2',}  ", "\x00\x01\x02\x03"),
			"Tensor[int16] {[1 515] [2]}"},
		{npyOf(1, "{u'shape': (), 'fortran_order': True, 'descr': u'<b1'}", "\x01"),
			"Tensor[bool] {[true] []}"},
		{npyOf(1, "{'descr': '=i1', 'fortran_order': False, 'shape': (0,)}", ""),
			"Tensor[int8] {[] [0]}"},
		{plain(1, "<V2", "(1,)", "\x80\x3f"), "error descr is … bfloat16 … Example_bfloat16"},
		{npyOf(1, "{'descr': '<f4', 'shape': (1,)}", "1234"),
			"error fortran_order must be False or True"},
		{npyOf(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", "1234"),
			"error must be a dictionary"},
		{npyOf(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} 2", "1234"),
			"error must be a dictionary"},
		{npyOf(1, "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "1234"),
			"error fortran_order must not be a number"},
		{"", "error must be an npy file of version 1 to 3, and it is empty"},
		{sound[:9], `error must be an npy file … 9 bytes begin with "\x93NUMPY`},
		{"x" + sound[1:], `error must be an npy file … begin with "xNUMPY`},
		{plain(4, "<f4", "(2,)", "12345678"), "error must be an npy file of version 1 to 3"},
		{sound[:50], "error truncated … 118 bytes, and 40"},
		{plain(2, "<f4", "(2,)", "")[:12], "error truncated … 118 bytes, and 0"},
		{sound[:len(sound)-1], "error 7 bytes"}, {sound + "x", "error 9 bytes"},
		{sound[:len(sound)-8], "error 0 bytes"},
		{npy(1, "'<f4'", "True", "(1, 2)", "12345678"), "error numpy.ascontiguousarray"},
		{npy(1, "[('a', '<f4')]", "False", "(1,)", "xxxx"), "error f4, f8"},
		{plain(1, "|O", "(2,)", "x"), "error f4, f8"},
		{plain(1, "<f2", "(2,)", "xxx"), "error 3 bytes"},
		{plain(1, "<f4", "(1000000000,)", "1234"), "error 4 bytes"},
		{plain(1, "<f4", "(x,)", "1234"), "error must be a dictionary"},
		{plain(1, "<f4", "(65536, 65536, 65536, 65536)", ""), "error does not fit"},
		{plain(1, "<f4", "(-1, -1)", "1234"), "error shape must be a tuple of lengths"},
		{plain(1, "<f4", "(1, null)", ""), "error shape must be a tuple of lengths"},
		{plain(2, "<f4", strings.Repeat(" ", 1<<16)+"(1,)", "1234"), "error at most 65,536"},
		{plain(1, "<f4", "(99999999999999999999,)", "1234"), "error shape must not be a number"},
		{plain(2, "<f4", "("+strings.Repeat("9,", 20000)+")", "1234"), `error the shape "[9 9 `},
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
		paletted.Palette = append(paletted.Palette,
			color.NRGBA{uint8(i), uint8(255 - i), uint8(i / 2), uint8(i * i)})
	}
	for _, img := range []interface {
		image.Image
		Set(x, y int, c color.Color)
	}{image.NewGray(r), image.NewRGBA(r), image.NewNRGBA(r), image.NewGray16(r), image.NewCMYK(r),
		paletted} {
		for i := range r.Dx() * r.Dy() { // with less alpha At loses the color
			var b [4]byte
			random.Read(b[:])
			c := color.NRGBA{b[0], b[1], b[2], 128 | b[3]}
			img.Set(r.Min.X+i%r.Dx(), r.Min.Y+i/r.Dx(),
				[]color.Color{c, color.Transparent, color.Gray{c.R}}[i%3])
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
	for _, r := range []image.Rectangle{rect(0, 0, 7, 5), rect(-2, 1, 11, 10), rect(5, 9, 6, 10),
		rect(0, 0, 0, 3), {}} {
		for _, img := range testImages(r) {
			crop := img.(interface {
				SubImage(image.Rectangle) image.Image
			}).SubImage
			for _, img := range []image.Image{img, crop(r.Inset(1)), crop(rect(1, 3, 4, 5)),
				crop(rect(3, 2, 6, 5))} {
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
	// green over purple
	two := &image.NRGBA{Pix: []byte{0, 255, 0, 255, 255, 0, 255, 255}, Stride: 4,
		Rect: rect(0, 0, 1, 2)}
	equal(t, "planes", ImageTensor(slow, two).Data, []float32{0, 1, 1, 0, 0, 1})
	first := ImageTensor(Tensor[float32]{}, testImages(image.Rect(0, 0, 4, 4))[0])
	equal(t, "in the memory of dst", &ImageTensor(first,
		image.NewGray(image.Rect(0, 0, 4, 4))).Data[0] == &first.Data[0], true)
	for _, img := range testImages(image.Rect(0, 0, 9, 9)) {
		equal(t, fmt.Sprintf("allocations for %T", img),
			testing.AllocsPerRun(10, func() { fast = ImageTensor(fast, img) }), 0)
	}
}

// TestImageTensorColors: alpha is left out, and the plain colors stay.
func TestImageTensorColors(t *testing.T) {
	empty := &image.NRGBA{Stride: 4, Rect: image.Rect(0, 0, 0, 3)}
	equal(t, "no columns", ImageTensor(Tensor[float32]{}, empty).Shape, []int{3, 3, 0})
	type rgb [3]float32
	one := image.Rect(0, 0, 1, 1)
	pixel := func(c color.Color) image.Image { // somewhere else, and with At only
		return slowly{&image.Paletted{Pix: []byte{0}, Rect: image.Rect(6, 7, 7, 8),
			Palette: color.Palette{c}}}
	}
	for _, c := range []struct {
		img  image.Image
		want rgb
	}{
		{pixel(color.White), rgb{1, 1, 1}}, {pixel(color.RGBA{}), rgb{0, 0, 0}},
		{pixel(color.RGBA{255, 51, 0, 255}), rgb{1, 0.2, 0}},
		{pixel(color.RGBA{51, 102, 0, 102}), rgb{0.5, 1, 0}},
		// Images that are not valid, as if alpha had been left out; red that is
		// transparent; white; gray of 16 bits.
		{pixel(color.RGBA{200, 0, 0, 0}), rgb{1, 0, 0}},
		{&image.RGBA{Pix: []byte{200, 0, 0, 0}, Stride: 4, Rect: one}, rgb{1, 0, 0}},
		{pixel(color.RGBA{200, 0, 0, 1}), rgb{1, 0, 0}},
		{&image.RGBA{Pix: []byte{200, 0, 0, 1}, Stride: 4, Rect: one}, rgb{1, 0, 0}},
		{&image.NRGBA{Pix: []byte{255, 0, 0, 0}, Stride: 4, Rect: one}, rgb{1, 0, 0}},
		{&image.YCbCr{Y: []byte{255}, Cb: []byte{128}, Cr: []byte{128}, YStride: 1, CStride: 1,
			Rect: one}, rgb{1, 1, 1}},
		{&image.Gray16{Pix: []byte{0x33, 0x34}, Stride: 2, Rect: one},
			rgb{13108.0 / 65535, 13108.0 / 65535, 13108.0 / 65535}},
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
