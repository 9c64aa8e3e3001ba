package dataloader

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"io"
	"io/fs"
	"iter"
	"log"
	"maps"
	"math"
	"math/bits"
	"math/cmplx"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
	"weak"
)

// numbers is the data set 0, 1, …, n-1.
func numbers(n int) Dataset[int] {
	return Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
}

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

// outcomes reads a sequence and writes down values and errors, in words.
func outcomes[T any](seq iter.Seq2[T, error]) []string {
	all := []string{}
	for v, err := range seq {
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
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back Cursor
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	return back
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
	defer func() {
		t.Helper()
		saysAll(t, fmt.Errorf("%v", recover()), parts...)
	}()
	f()
}

// The tests of the classic notebook, by its names.

// notebook is its data set: 20 samples of 2×3×5 numbers, with labels of which each occurs twice, and a tenth of a
// second to fetch one. The test runs in a bubble of testing/synctest, in which that takes no time.
func notebook(t *testing.T, opts Options, test func(t *testing.T, data Slice[Pair[Tensor[float64], int]], loader *DataLoader[Pair[Tensor[float64], []int]])) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		random := rand.New(rand.NewPCG(0, 0))
		var data Slice[Pair[Tensor[float64], int]]
		for i := range n {
			sample := Tensor[float64]{make([]float64, 30), []int{2, 3, 5}}
			for j := range sample.Data {
				sample.Data[j] = random.NormFloat64()
			}
			data = append(data, Pair[Tensor[float64], int]{sample, i * 7 % (n / 2)})
		}
		slow := Func(n, func(ctx context.Context, i int) (Pair[Tensor[float64], int], error) {
			time.Sleep(100 * time.Millisecond)
			return data.Get(ctx, i)
		})
		loader, err := New(slow, CollatePair(Stack[float64], List[int]), opts)
		if err != nil {
			t.Fatal(err)
		}
		test(t, data, loader)
	})
}

func testSequential(t *testing.T, opts Options) {
	notebook(t, opts, func(t *testing.T, data Slice[Pair[Tensor[float64], int]], loader *DataLoader[Pair[Tensor[float64], []int]]) {
		size := max(opts.BatchSize, 1)
		start, batches := time.Now(), 0
		for batch, err := range loader.Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "shape", batch.First.Shape, []int{size, 2, 3, 5})
			for j := range size {
				want := data[batches*size+j]
				equal(t, "sample", batch.First.Data[j*30:(j+1)*30], want.First.Data)
				equal(t, "label", batch.Second[j], want.Second)
			}
			batches++
		}
		equal(t, "batches", batches, 20/size)
		equal(t, "time", time.Since(start), 2*time.Second/time.Duration(max(opts.Workers, 1)))
	})
}

func testShuffle(t *testing.T, opts Options) {
	opts.Shuffle = true
	notebook(t, opts, func(t *testing.T, data Slice[Pair[Tensor[float64], int]], loader *DataLoader[Pair[Tensor[float64], []int]]) {
		size := max(opts.BatchSize, 1)
		found, sorted := map[int]bool{}, true
		for batch, err := range loader.Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			for j, label := range batch.Second {
				i := slices.IndexFunc(data, func(p Pair[Tensor[float64], int]) bool {
					return slices.Equal(p.First.Data, batch.First.Data[j*30:(j+1)*30])
				})
				if i < 0 || found[i] {
					t.Fatalf("sample %d is unknown or has come twice", i)
				}
				equal(t, "label of its own sample", label, data[i].Second)
				sorted = sorted && i == len(found)
				found[i] = true
			}
			equal(t, "found", len(found)%size, 0)
		}
		equal(t, "found in the end", len(found), 20)
		equal(t, "still in order", sorted, false)
	})
}

func TestSequential(t *testing.T)             { testSequential(t, Options{}) }
func TestSequentialBatch(t *testing.T)        { testSequential(t, Options{BatchSize: 2}) }
func TestSequentialWorkers(t *testing.T)      { testSequential(t, Options{Workers: 4}) }
func TestSequentialBatchWorkers(t *testing.T) { testSequential(t, Options{BatchSize: 2, Workers: 2}) }
func TestShuffle(t *testing.T)                { testShuffle(t, Options{}) }
func TestShuffleBatch(t *testing.T)           { testShuffle(t, Options{BatchSize: 2}) }
func TestShuffleWorkers(t *testing.T)         { testShuffle(t, Options{Workers: 4}) }
func TestShuffleBatchWorkers(t *testing.T)    { testShuffle(t, Options{BatchSize: 2, Workers: 4}) }

// TestPartialWorkers: the workers are gone after a loop that was left early. (The bubble would report a goroutine that
// is left; that they are gone at once, and not later, the count shows.)
func TestPartialWorkers(t *testing.T) {
	notebook(t, Options{BatchSize: 2, Workers: 4}, func(t *testing.T, _ Slice[Pair[Tensor[float64], int]], loader *DataLoader[Pair[Tensor[float64], []int]]) {
		before := runtime.NumGoroutine()
		i := 0
		for _, err := range loader.Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if i == 3 {
				equal(t, "workers during the loop", runtime.NumGoroutine()-before, 4)
				break
			}
			i++
		}
		equal(t, "workers after it", runtime.NumGoroutine()-before, 0)
	})
}

// TestError is the notebook's test of a data set that has no samples to give: an error for every batch.
func TestError(t *testing.T) {
	errNot := errors.New("not implemented")
	data := Func(41, func(context.Context, int) (int, error) { return 0, errNot })
	for _, workers := range []int{0, 1, 4} {
		batches := 0
		for _, err := range newLoader(t, data, Options{BatchSize: 2, Workers: workers}).Epoch(t.Context(), 0) {
			if !errors.Is(err, errNot) {
				t.Fatal(err)
			}
			batches++
		}
		equal(t, "errors", batches, 21)
	}
}

// The classic loader's conformance: what PyTorch's own tests and its behaviour say.

func TestBatching(t *testing.T) {
	ordered := OrderFunc(10, func(int) []int { return []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11} })
	tests := []struct {
		name string
		n    int
		opts Options
		want string
	}{
		{"one by one", 3, Options{}, "[[0] [1] [2]]"},
		{"last batch short", 10, Options{BatchSize: 3}, "[[0 1 2] [3 4 5] [6 7 8] [9]]"},
		{"last batch dropped", 10, Options{BatchSize: 3, DropLast: true}, "[[0 1 2] [3 4 5] [6 7 8]]"},
		{"no empty batch", 9, Options{BatchSize: 3}, "[[0 1 2] [3 4 5] [6 7 8]]"},
		{"no empty batch, dropping", 9, Options{BatchSize: 3, DropLast: true}, "[[0 1 2] [3 4 5] [6 7 8]]"},
		{"batch larger than the data", 2, Options{BatchSize: 20}, "[[0 1]]"},
		{"batch larger than the data, dropping", 2, Options{BatchSize: 20, DropLast: true}, "[]"},
		{"batch as large as can be", 2, Options{BatchSize: math.MaxInt}, "[[0 1]]"},
		{"eleven by three", 11, Options{BatchSize: 3}, "[[0 1 2] [3 4 5] [6 7 8] [9 10]]"},
		{"empty", 0, Options{BatchSize: 3}, "[]"},
		{"empty, dropping", 0, Options{BatchSize: 3, DropLast: true}, "[]"},
		{"empty, shuffled", 0, Options{BatchSize: 3, Shuffle: true}, "[]"},
		{"empty, sharded", 0, Options{Shard: Shard{1, 2}}, "[]"},
		{"empty batch sampler", 3, Options{BatchSampler: Batches(Sequential(0), 2, false)}, "[]"},
		{"sampler", 20, Options{BatchSize: 2, Sampler: ordered}, "[[2 3] [4 5] [6 7] [8 9] [10 11]]"},
		{"sampler with repeats", 3, Options{BatchSize: 2, Sampler: OrderFunc(3, func(int) []int { return []int{1, 1, 1} })}, "[[1 1] [1]]"},
		{"ragged batch sampler", 10, Options{BatchSampler: raggedBatches{{0, 1}, {2, 3, 4}, {5, 6}, {7, 8, 9}}}, "[[0 1] [2 3 4] [5 6] [7 8 9]]"},
		{"batch sampler, one by one", 3, Options{BatchSampler: raggedBatches{{2}, {2, 2}}}, "[[2] [2 2]]"},
		{"batches of a sampler", 10, Options{BatchSampler: Batches(Sequential(10), 3, false)}, "[[0 1 2] [3 4 5] [6 7 8] [9]]"},
		{"batches of a sampler, dropping", 10, Options{BatchSampler: Batches(Sequential(10), 3, true)}, "[[0 1 2] [3 4 5] [6 7 8]]"},
	}
	for _, test := range tests {
		for _, workers := range []int{0, 1, 2, 4} {
			for _, prefetch := range []int{0, 1, 3} {
				if test.opts.Workers, test.opts.Prefetch = workers, min(prefetch, workers*3); workers == 0 && prefetch > 0 {
					continue
				}
				loader := newLoader(t, numbers(test.n), test.opts)
				got := collect(t, loader.Epoch(t.Context(), 0))
				equal(t, fmt.Sprintf("%s, %d workers", test.name, workers), got, test.want)
				equal(t, test.name+": Len", loader.Len(), len(got))
			}
		}
	}
}

// raggedBatches is a batch sampler of a user's own: its batches, the same in every epoch.
type raggedBatches [][]int

func (r raggedBatches) Len() int                      { return len(r) }
func (r raggedBatches) Batches(int) func(k int) []int { return func(k int) []int { return r[k] } }

func TestLen(t *testing.T) {
	for _, test := range []struct {
		n, size int
		drop    bool
		want    int
	}{{100, 2, false, 50}, {100, 3, false, 34}, {100, 3, true, 33}, {10, 20, false, 1}, {10, 20, true, 0}, {0, 3, false, 0}, {7, 0, false, 7}} {
		loader := newLoader(t, numbers(test.n), Options{BatchSize: test.size, DropLast: test.drop})
		equal(t, fmt.Sprint(test), loader.Len(), test.want)
		equal(t, fmt.Sprint(test), len(collect(t, loader.Epoch(t.Context(), 0))), test.want)
	}
	loader := newLoader(t, numbers(100), Options{BatchSize: 6, Sampler: Resize(Random(100, 0), 105)})
	equal(t, "resized", loader.Len(), 18)
}

// TestSamplerOrderIsBatchOrder: in one Go peer no sampler ever took effect.
func TestSamplerOrderIsBatchOrder(t *testing.T) {
	for _, s := range []Sampler{Random(100, 3), TorchRandom(100, 3), Sequential(100), RandomWithReplacement(50, 100, 3)} {
		for _, workers := range []int{0, 3} {
			for epoch := range 3 {
				got := slices.Concat(collect(t, newLoader(t, numbers(100), Options{BatchSize: 7, Sampler: s, Workers: workers}).Epoch(t.Context(), epoch))...)
				equal(t, fmt.Sprint(s), got, positions(s, epoch))
			}
		}
	}
}

// positions is an epoch of a sampler as a list.
func positions(s Sampler, epoch int) []int {
	order := s.Order(epoch)
	all := make([]int, s.Len())
	for pos := range all {
		all[pos] = order(pos)
	}
	return all
}

// TestShuffleOptions: shuffled, each index comes exactly once, the same for all workers and all ways to stop before.
func TestShuffleOptions(t *testing.T) {
	for _, size := range []int{1, 2} {
		var want [][]int
		for _, workers := range []int{0, 1, 3, 4} {
			loader := newLoader(t, numbers(31), Options{BatchSize: size, Shuffle: true, Seed: 42, Workers: workers})
			for stop := range 5 { // what was drawn before leaves no trace
				for range loader.Epoch(t.Context(), 0) {
					if stop--; stop < 0 {
						break
					}
				}
			}
			got := collect(t, loader.Epoch(t.Context(), 1))
			if want == nil {
				want = got
			}
			equal(t, "epoch 1", got, want)
			flat := slices.Concat(got...)
			slices.Sort(flat)
			equal(t, "all indices", flat, positions(Sequential(31), 0))
			if fmt.Sprint(collect(t, loader.Epoch(t.Context(), 2))) == fmt.Sprint(got) {
				t.Error("epoch 2 is epoch 1")
			}
		}
	}
}

// batchData is a data set that fetches whole batches; it gives short more or fewer samples than it should.
type batchData struct {
	Slice[int]
	calls *[]string
	short int
	err   error
}

func (d batchData) Get(context.Context, int) (int, error) { panic("Get is not to be called") }

func (d batchData) GetBatch(_ context.Context, indices []int) ([]int, error) {
	*d.calls = append(*d.calls, fmt.Sprint(indices))
	return append(slices.Clone(indices), 0)[:len(indices)-d.short], d.err
}

func TestBatchGetter(t *testing.T) {
	var calls []string
	data := batchData{Slice: make(Slice[int], 5), calls: &calls}
	loader := newLoader(t, Dataset[int](data), Options{BatchSize: 2})
	equal(t, "batches", collect(t, loader.Epoch(t.Context(), 0)), "[[0 1] [2 3] [4]]")
	equal(t, "calls", calls, "[[0 1] [2 3] [4]]")

	calls = nil
	subset := must(Subset[int](data, []int{4, 2, 0}))
	equal(t, "through Subset", collect(t, newLoader(t, subset, Options{BatchSize: 2}).Epoch(t.Context(), 0)), "[[4 2] [0]]")
	equal(t, "calls", calls, "[[4 2] [0]]")
	_, err := subset.(BatchGetter[int]).GetBatch(t.Context(), []int{3})
	saysAll(t, err, "index 3", "3 samples")

	data.short = 1
	got := outcomes(newLoader(t, Dataset[int](data), Options{BatchSize: 2}).Epoch(t.Context(), 0))
	equal(t, "one sample missing", got[0], "error dataloader: epoch 0, batch 0: GetBatch returned 1 samples for 2 indices")
	data.short = -1
	got = outcomes(newLoader(t, Dataset[int](data), Options{BatchSize: 2}).Epoch(t.Context(), 0))
	equal(t, "one sample more", got[0], "error dataloader: epoch 0, batch 0: GetBatch returned 3 samples for 2 indices")
	data.short, data.err = 0, io.EOF
	for _, err := range newLoader(t, Dataset[int](data), Options{BatchSize: 2}).Epoch(t.Context(), 0) {
		var sample *SampleError
		if !errors.Is(err, io.EOF) || !errors.As(err, &sample) || sample.Index != -1 {
			t.Fatal(err)
		}
	}
	data.err = nil
	outside := OrderFunc(3, func(int) []int { return []int{1, 99, 2} })
	got = outcomes(newLoader(t, Dataset[int](data), Options{BatchSize: 3, Sampler: outside, OnError: func(*SampleError) error { return nil }}).Epoch(t.Context(), 0))
	equal(t, "without the sample that there is not", got, "[[1 2]]")
	calls = nil
	nothing := OrderFunc(1, func(int) []int { return []int{99} })
	got = outcomes(newLoader(t, Dataset[int](data), Options{Sampler: nothing, OnError: func(*SampleError) error { return nil }}).Epoch(t.Context(), 0))
	equal(t, "with nothing left", fmt.Sprint(got, calls), "[] []")
	got = outcomes(newLoader(t, Dataset[int](data), Options{BatchSize: 3, Sampler: outside}).Epoch(t.Context(), 0))
	equal(t, "with it", got, "[error dataloader: epoch 0, batch 0, sample 99: index 99 is outside the data set, which has 5 samples]")
}

// The engine: laziness, bounds, order.

// asked counts what a loader has asked its sampler for: the batches that are under way or delivered.
type asked struct {
	Sampler
	count atomic.Int64
}

func (a *asked) Order(epoch int) func(int) int {
	order := a.Sampler.Order(epoch)
	return func(pos int) int { a.count.Add(1); return order(pos) }
}

func TestLookAhead(t *testing.T) {
	for _, test := range []struct{ workers, prefetch, window int }{{0, 0, 0}, {1, 2, 2}, {2, 2, 4}, {2, 1, 2}, {3, 4, 12}, {2, 0, 4}} {
		for _, unordered := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				sampler := &asked{Sampler: Sequential(50)}
				loader := newLoader(t, numbers(50), Options{Sampler: sampler, Workers: test.workers, Prefetch: test.prefetch, Unordered: unordered})
				seq := loader.Epoch(t.Context(), 0)
				synctest.Wait()
				equal(t, "asked for before the range", sampler.count.Load(), 0)
				taken := 0
				for range seq {
					taken++
					synctest.Wait() // everything that was asked for is loaded now
					equal(t, fmt.Sprintf("%+v: asked for with batch %d in hand", test, taken), sampler.count.Load(), min(50, taken+test.window))
				}
			})
		}
	}
}

// TestStuckBatch: batch 0 does not come. At most window batches are loaded, in order or not, and then all comes.
func TestStuckBatch(t *testing.T) {
	for _, unordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			gate := make(chan struct{})
			var loaded atomic.Int64
			data := Func(20, func(ctx context.Context, i int) (int, error) {
				if i == 0 {
					<-gate
				}
				loaded.Add(1)
				return i, nil
			})
			loader := newLoader(t, data, Options{Workers: 2, Unordered: unordered})
			var got []int
			wait := sync.WaitGroup{}
			wait.Go(func() {
				for batch := range loader.Epoch(t.Context(), 0) {
					got = append(got, batch...)
				}
			})
			synctest.Wait()
			if unordered { // one stuck batch costs one slot, and nothing waits behind it
				equal(t, "delivered", got, positions(Sequential(20), 0)[1:])
			} else {
				equal(t, "delivered", got, "[]")
				equal(t, "loaded", loaded.Load(), 3)
			}
			close(gate)
			wait.Wait()
			if unordered {
				equal(t, "the stuck one last", got[19], 0)
			} else {
				equal(t, "in order", got, positions(Sequential(20), 0))
			}
		})
	}
}

// TestOrder: with random delays the batches come in order, and each exactly once if order is not asked for.
func TestOrder(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			data := Func(1000, func(_ context.Context, i int) (int, error) {
				time.Sleep(time.Duration(counter(seed, uint64(i)) % 1000))
				return i, nil
			})
			want := positions(Sequential(1000), 0)
			loader := newLoader(t, data, Options{Workers: 8})
			equal(t, "ordered", slices.Concat(collect(t, loader.Epoch(t.Context(), 0))...), want)
			loader = newLoader(t, data, Options{Workers: 8, Unordered: true})
			got := slices.Concat(collect(t, loader.Epoch(t.Context(), 0))...)
			if slices.IsSorted(got) {
				t.Error("unordered, but in order")
			}
			slices.Sort(got)
			equal(t, "unordered", got, want)
		})
	}
}

// TestWallTime: exact times, in fake time.
func TestWallTime(t *testing.T) {
	for _, test := range []struct {
		opts Options
		want time.Duration
	}{
		{Options{}, 2000 * time.Millisecond},
		{Options{Workers: 1}, 2000 * time.Millisecond},
		{Options{Workers: 4}, 500 * time.Millisecond},
		{Options{Workers: 20}, 100 * time.Millisecond},
		{Options{Workers: 100}, 100 * time.Millisecond},
		{Options{Workers: 4, BatchSize: 5}, 500 * time.Millisecond},
		{Options{Workers: 4, Unordered: true}, 500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			data := Func(20, func(_ context.Context, i int) (int, error) {
				time.Sleep(100 * time.Millisecond)
				return i, nil
			})
			start := time.Now()
			collect(t, newLoader(t, data, test.opts).Epoch(t.Context(), 0))
			equal(t, fmt.Sprintf("%+v", test.opts), time.Since(start), test.want)
		})
	}
}

// TestLoadingWhileTraining: the window is refilled before a batch is handed over, so with one worker loading
// and training overlap completely.
func TestLoadingWhileTraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := Func(10, func(_ context.Context, i int) (int, error) {
			time.Sleep(time.Second)
			return i, nil
		})
		start := time.Now()
		for range newLoader(t, data, Options{Workers: 1, Prefetch: 1}).Epoch(t.Context(), 0) {
			time.Sleep(time.Second)
		}
		equal(t, "time", time.Since(start), 11*time.Second)
	})
}

// TestNestedLoops: loops over one loader do not meet.
func TestNestedLoops(t *testing.T) {
	for _, workers := range []int{0, 2} {
		loader := newLoader(t, numbers(3), Options{Workers: workers})
		var got []string
		for a := range loader.Epoch(t.Context(), 0) {
			for b := range loader.Epoch(t.Context(), 0) {
				got = append(got, fmt.Sprint(a[0], b[0]))
			}
		}
		equal(t, "pairs", got, "[0 0 0 1 0 2 1 0 1 1 1 2 2 0 2 1 2 2]")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for epoch := range 10 {
					for batch, err := range loader.Epoch(t.Context(), epoch) {
						if err != nil {
							t.Error(err)
						}
						loader.Recycle(batch)
					}
				}
			})
		}
		all.Wait()
	}
}

// TestLeaving: however the loop is left, at whatever batch, all goroutines are joined when it is, and no Get begins
// after.
func TestLeaving(t *testing.T) {
	type leaving struct {
		name  string
		leave func(cancel func()) bool // reports whether to break
	}
	ways := []leaving{
		{"break", func(func()) bool { return true }},
		{"panic", func(func()) bool { panic("of the loop body") }},
		{"Goexit", func(func()) bool { runtime.Goexit(); return false }},
		{"cancel", func(cancel func()) bool { cancel(); return false }},
	}
	for _, way := range ways {
		for _, workers := range []int{0, 1, 4} {
			for stop := range 12 {
				synctest.Test(t, func(t *testing.T) {
					var begun, running atomic.Int64
					data := Func(40, func(ctx context.Context, i int) (int, error) {
						begun.Add(1)
						running.Add(1)
						defer running.Add(-1)
						select { // honours its context
						case <-time.After(time.Second):
							return i, nil
						case <-ctx.Done():
							return 0, ctx.Err()
						}
					})
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					loader := newLoader(t, data, Options{Workers: workers, BatchSize: 3})
					why := errors.New("enough")
					var stopped time.Time
					var begunThen int64
					var errs []error
					var loop sync.WaitGroup
					loop.Go(func() {
						defer func() {
							if r := recover(); r != nil && r != "of the loop body" {
								panic(r)
							}
							equal(t, way.name+": Gets still running", running.Load(), 0)
							equal(t, way.name+": Gets begun since", begun.Load()-begunThen, 0)
							equal(t, way.name+": time to leave", time.Since(stopped), time.Duration(0))
						}()
						n := 0
						for _, err := range loader.Epoch(ctx, 0) {
							if err != nil {
								errs = append(errs, err)
								continue
							}
							if n == stop {
								stopped = time.Now()
								synctest.Wait()
								begunThen = begun.Load()
								if way.leave(func() { cancel(why) }) {
									break
								}
							}
							n++
						}
					})
					loop.Wait()
					if way.name == "cancel" && (len(errs) != 1 || errs[0] != why) {
						t.Fatalf("after cancel: %v, want %v once", errs, why)
					}
				})
			}
		}
	}
}

// TestLeavingDeafGets: a Get that does not look at its context is waited for, and no other begins, not even for the batch
// that it belongs to.
func TestLeavingDeafGets(t *testing.T) {
	for _, workers := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			var begun atomic.Int64
			data := Func(40, func(context.Context, int) (int, error) {
				begun.Add(1)
				time.Sleep(time.Second)
				return 0, errBad
			})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(3500*time.Millisecond, cancel)
			loader := newLoader(t, data, Options{Workers: workers, BatchSize: 10, OnError: func(*SampleError) error { return nil }})
			for range loader.Epoch(ctx, 0) {
			}
			equal(t, "Gets", begun.Load(), 4*max(workers, 1))
		})
	}
}

// TestCancelWhileWaiting: a Get that honours its context ends the loop as soon as the context does.
func TestCancelWhileWaiting(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a minute is over"))
			defer cancel()
			data := Func(10, func(ctx context.Context, i int) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			})
			start := time.Now()
			at := Cursor{Epoch: 2}
			asked := 0
			loader := newLoader(t, data, Options{Workers: workers, OnError: func(*SampleError) error { asked++; return nil }})
			equal(t, "outcome", outcomes(loader.Run(ctx, &at)), "[error a minute is over]")
			equal(t, "time", time.Since(start), time.Minute)
			equal(t, "cursor", at, Cursor{Epoch: 2})
			equal(t, "OnError calls", asked, 0)
			equal(t, "again", outcomes(loader.Run(ctx, &at)), "[error a minute is over]")
			_, err := loader.Batch(ctx, 0, 0)
			equal(t, "Batch", err, "a minute is over")
		})
	}
}

// Errors.

var errBad = errors.New("bad sample")

// failing is numbers(n) but for the bad ones.
func failing(n int, bad ...int) Dataset[int] {
	return Func(n, func(_ context.Context, i int) (int, error) {
		if slices.Contains(bad, i) {
			return 0, errBad
		}
		return i, nil
	})
}

func TestErrorsInPlace(t *testing.T) {
	for _, workers := range []int{0, 1, 2, 4} {
		synctest.Test(t, func(t *testing.T) {
			loader := newLoader(t, failing(10, 3), Options{BatchSize: 2, Workers: workers})
			equal(t, "outcomes", outcomes(loader.Epoch(t.Context(), 5)),
				"[[0 1] error dataloader: epoch 5, batch 1, sample 3: bad sample [4 5] [6 7] [8 9]]")
			for _, err := range loader.Epoch(t.Context(), 5) {
				var sample *SampleError
				if err != nil && (!errors.Is(err, errBad) || !errors.As(err, &sample) || *sample != SampleError{5, 1, 3, errBad}) {
					t.Error(err)
				}
			}
			slow := Func(5, func(ctx context.Context, i int) (int, error) { // the error is there long before batch 0
				if i == 0 {
					time.Sleep(time.Second)
				}
				return failing(5, 1).Get(ctx, i)
			})
			equal(t, "after a slow one", outcomes(newLoader(t, slow, Options{Workers: workers}).Epoch(t.Context(), 0)),
				"[[0] error dataloader: epoch 0, batch 1, sample 1: bad sample [2] [3] [4]]")
			eof := Func(3, func(context.Context, int) (int, error) { return 0, io.EOF })
			equal(t, "io.EOF is no end", len(outcomes(newLoader(t, eof, Options{Workers: workers}).Epoch(t.Context(), 0))), 3)
		})
	}
}

// TestUnorderedErrors: the slow batch fails when it does, and only it.
func TestUnorderedErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := Func(6, func(ctx context.Context, i int) (int, error) {
			if i == 0 {
				time.Sleep(time.Second)
				return 0, errBad
			}
			return i, nil
		})
		got := outcomes(newLoader(t, data, Options{Workers: 2, Unordered: true}).Epoch(t.Context(), 0))
		equal(t, "outcomes", got, "[[1] [2] [3] [4] [5] error dataloader: epoch 0, batch 0, sample 0: bad sample]")
	})
}

// TestUserCodeThatDies: a panic in any of the user's functions, and in a worker a Goexit, fails the batches that it
// fails and nothing else, the same for every number of workers.
func TestUserCodeThatDies(t *testing.T) {
	for _, workers := range []int{0, 1, 3} {
		for name, die := range map[string]func(){"panic: ouch": func() { panic("ouch") }, "panic: EOF": func() { panic(io.EOF) }, "runtime.Goexit was called": runtime.Goexit} {
			if workers == 0 && strings.Contains(name, "Goexit") {
				continue // the goroutine that it ends is the caller's own
			}
			synctest.Test(t, func(t *testing.T) {
				check := func(where, want string, data Dataset[int], collate Collate[int, []int], opts Options) {
					t.Helper()
					opts.BatchSize, opts.Workers = 2, workers
					if opts.BatchSampler != nil {
						opts.BatchSize = 0
					}
					loader := must(New(data, collate, opts))
					for range 3 {
						equal(t, where, outcomes(loader.Epoch(t.Context(), 0)), strings.ReplaceAll(want, "DIES", name))
					}
					for _, err := range loader.Epoch(t.Context(), 0) {
						var p *PanicError
						if errors.As(err, &p) && !bytes.Contains(p.Stack, []byte("TestUserCodeThatDies")) {
							t.Errorf("the stack does not show where: %s", p.Stack)
						}
						if err != nil && errors.Is(err, io.EOF) != strings.Contains(name, "EOF") {
							t.Errorf("%v is not the value of the panic", err)
						}
					}
				}
				dieAt := func(bad int) func(int) int {
					return func(i int) int {
						if i == bad {
							die()
						}
						return i
					}
				}
				get := Func(6, func(_ context.Context, i int) (int, error) { return dieAt(2)(i), nil })
				check("Get", "[[0 1] error dataloader: epoch 0, batch 1, sample 2: DIES [4 5]]", get, List[int], Options{})
				if !strings.Contains(name, "Goexit") {
					check("Get with OnError", "[[0 1] [3] [4 5]]", get, List[int], Options{OnError: func(*SampleError) error { return nil }})
				}
				all := func(dst []int, samples []int) ([]int, error) {
					dieAt(2)(samples[0])
					return List(dst, samples)
				}
				check("collate", "[[0 1] error dataloader: epoch 0, batch 1: DIES [4 5]]", numbers(6), all, Options{})
				sampler := samplerFunc{6, func(int) func(int) int { return dieAt(2) }}
				check("sampler", "[[0 1] error dataloader: epoch 0, batch 1: DIES [4 5]]", numbers(6), List[int], Options{Sampler: sampler})
				batches := batchSampler{3, "dying", func(int) func(int) []int {
					return func(k int) []int { dieAt(1)(k); return []int{2 * k, 2*k + 1} }
				}}
				check("batch sampler", "[[0 1] error dataloader: epoch 0, batch 1: DIES [4 5]]", numbers(6), List[int], Options{BatchSampler: batches})
				check("OnError", "[[0 1] error dataloader: epoch 0, batch 1, sample 2: OnError: DIES [4 5]]", failing(6, 2), List[int],
					Options{OnError: func(*SampleError) error { die(); return nil }})
				if !strings.Contains(name, "Goexit") { // Order is called in the caller's goroutine
					order := samplerFunc{4, func(int) func(int) int { die(); return nil }}
					check("Order", "[error dataloader: epoch 0, batch 0: DIES error dataloader: epoch 0, batch 1: DIES]", numbers(6), List[int], Options{Sampler: order})
				}
			})
		}
	}
}

// samplerFunc is a sampler of a user's own, without a String.
type samplerFunc struct {
	n     int
	order func(epoch int) func(int) int
}

func (s samplerFunc) Len() int                      { return s.n }
func (s samplerFunc) Order(epoch int) func(int) int { return s.order(epoch) }

// TestOnError: bad samples are dropped from their batches, or fail them, as OnError says; it hears of them in
// the order of the batches, whatever the number of workers.
func TestOnError(t *testing.T) {
	for _, workers := range []int{0, 1, 4} {
		for _, unordered := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var heard []string
				inside := false
				budget := 4
				opts := Options{BatchSize: 3, Workers: workers, Unordered: unordered, OnError: func(e *SampleError) error {
					if inside {
						t.Error("OnError is called twice at once")
					}
					inside = true
					time.Sleep(time.Millisecond)
					inside = false
					heard = append(heard, fmt.Sprint(e.Batch, ":", e.Index))
					if budget--; budget < 0 {
						return fmt.Errorf("more than 4 bad samples: %w", e)
					}
					return nil
				}}
				loader := newLoader(t, failing(20, 0, 6, 7, 8, 13, 19), opts)
				if !unordered || workers == 0 { // else it is open who is heard first, and whose error breaks the budget
					equal(t, "outcomes", outcomes(loader.Epoch(t.Context(), 0)),
						"[[1 2] [3 4 5] [9 10 11] error more than 4 bad samples: dataloader: epoch 0, batch 4, sample 13: bad sample [15 16 17] error more than 4 bad samples: dataloader: epoch 0, batch 6, sample 19: bad sample]")
					equal(t, "heard", heard, "[0:0 2:6 2:7 2:8 4:13 6:19]")
				}
				budget = 100
				var loops sync.WaitGroup
				for range 3 { // and not by two loops at once
					loops.Go(func() {
						for range loader.Epoch(t.Context(), 0) {
						}
					})
				}
				loops.Wait()
				_, err := loader.Batch(t.Context(), 0, 2)
				saysAll(t, err, "batch 2", "all samples were dropped")
			})
		}
	}
}

// TestOnErrorElsewhere: a loop whose context ends while it waits for another loop's OnError ends.
func TestOnErrorElsewhere(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			loader := newLoader(t, failing(3, 0, 1, 2), Options{Workers: workers, OnError: func(*SampleError) error {
				time.Sleep(time.Hour)
				return nil
			}})
			var other sync.WaitGroup
			other.Go(func() {
				for range loader.Epoch(t.Context(), 0) {
				}
			})
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, io.ErrNoProgress)
			defer cancel()
			start := time.Now()
			equal(t, "outcome", outcomes(loader.Epoch(ctx, 0)), "[error "+io.ErrNoProgress.Error()+"]")
			equal(t, "time", time.Since(start), time.Second)
			other.Wait()
		})
	}
}

// TestOnErrorStops: once it has failed a batch it hears no more of that batch, and a batch of which nothing is left
// is not collated.
func TestOnErrorStops(t *testing.T) {
	for _, workers := range []int{0, 2} {
		heard, collated := []int{}, atomic.Int64{}
		var traced []string
		collate := func(dst, samples []int) ([]int, error) {
			collated.Add(1)
			return nil, errors.New("collate")
		}
		loader := must(New(failing(8, 0, 1, 2, 3, 4, 7), collate, Options{BatchSize: 2, Workers: workers,
			OnError: func(e *SampleError) error {
				heard = append(heard, e.Index)
				if e.Index == 0 {
					return errBad
				}
				return nil
			},
			Trace: func(tm Timing) { traced = append(traced, fmt.Sprint(tm.Batch, tm.Samples, tm.Dropped)) },
		}))
		equal(t, "outcomes", outcomes(loader.Epoch(t.Context(), 0)),
			"[error bad sample error dataloader: epoch 0, batch 2: collating samples [5]: collate error dataloader: epoch 0, batch 3: collating samples [6]: collate]")
		equal(t, "heard", heard, "[0 2 3 4 7]")
		equal(t, "collated", collated.Load(), 2)
		equal(t, "traced", traced, "[0 0 0 1 0 2 2 0 0 3 0 0]")
	}
}

// TestFaultsAreNotMixedUp: a fault of the sampler is not put down to the sample before it.
func TestFaultsAreNotMixedUp(t *testing.T) {
	sampler := samplerFunc{3, func(int) func(int) int {
		return func(pos int) int {
			if pos == 1 {
				panic("ouch")
			}
			return pos
		}
	}}
	got := outcomes(newLoader(t, failing(3, 0), Options{Sampler: sampler}).Epoch(t.Context(), 0))
	equal(t, "outcomes", got, "[error dataloader: epoch 0, batch 0, sample 0: bad sample error dataloader: epoch 0, batch 1: panic: ouch [2]]")
	var careless carelessData // whose Get does not look at the index
	equal(t, "index outside", outcomes(newLoader[int](t, careless, Options{Sampler: OrderFunc(2, func(int) []int { return []int{0, 5} })}).Epoch(t.Context(), 0)),
		"[[0] error dataloader: epoch 0, batch 1, sample 5: index 5 is outside the data set, which has 3 samples]")
}

type carelessData struct{}

func (carelessData) Len() int                                  { return 3 }
func (carelessData) Get(_ context.Context, i int) (int, error) { return i, nil }

func TestCollateErrors(t *testing.T) {
	data := Slice[Tensor[int]]{{[]int{1, 2}, []int{2}}, {[]int{1, 2}, []int{2}}, {[]int{1}, []int{1}}}
	for _, workers := range []int{0, 2} {
		loader := must(New(data, Stack[int], Options{BatchSize: 3, Shuffle: true, Seed: 2, Workers: workers}))
		for _, err := range loader.Epoch(t.Context(), 0) {
			saysAll(t, err, "epoch 0", "batch 0", "Stack: sample", "[1]", "[2]", "collating samples [")
		}
	}
	many := must(New(numbers(20), func(dst []int, samples []int) ([]int, error) { return nil, errBad }, Options{BatchSize: 20}))
	_, err := many.Batch(t.Context(), 0, 0)
	saysAll(t, err, "samples [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] and 4 more: bad sample")
}

func TestTrace(t *testing.T) {
	for _, workers := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var timings []Timing
			data := Func(12, func(ctx context.Context, i int) (int, error) {
				time.Sleep(time.Second)
				return failing(12, 2, 4, 5).Get(ctx, i)
			})
			loader := newLoader(t, data, Options{BatchSize: 2, Workers: workers, Trace: func(tm Timing) { timings = append(timings, tm) },
				OnError: func(*SampleError) error { return nil }})
			start := time.Now()
			var samples []int
			for batch := range loader.Run(t.Context(), &Cursor{Epoch: 3, Pos: 2, State: loaderState{By: "Sequential(12)"}}) {
				samples = append(samples, len(batch))
				time.Sleep(time.Second)
			}
			equal(t, "samples", samples, "[1 2 2 2]")
			var waited, dropped []int
			for k, tm := range timings {
				equal(t, "epoch and batch", []int{tm.Epoch, tm.Batch}, []int{3, 1 + k})
				dropped = append(dropped, tm.Dropped)
				waited = append(waited, int(tm.Wait/time.Second))
				if tm.Worker < -1 || tm.Worker >= workers || workers > 0 && tm.Worker < 0 {
					t.Errorf("worker %d of %d", tm.Worker, workers)
				}
				if tm.Start.Before(tm.Sent) || tm.Received.Before(tm.Done) || tm.Done.Sub(tm.Start) != 2*time.Second || tm.Sent.Before(start) {
					t.Errorf("%+v", tm)
				}
			}
			equal(t, "dropped", dropped, "[1 2 0 0 0]")
			equal(t, "waited", waited, map[int]string{0: "[2 2 2 2 2]", 1: "[2 1 2 1 1]", 2: "[2 0 1 0 0]"}[workers])
		})
	}
}

// Resume.

// expect is what a loader has to give, computed as DistributedSampler's documentation describes it: pad or cut the
// order, take every Count-th, cut into batches.
func expect(order []int, o Options) [][]int {
	count := max(o.Shard.Count, 1)
	n := len(order)
	for len(order)%count != 0 && o.Tail == PadTail {
		order = append(slices.Clip(order), order[len(order)%n])
	}
	if o.Tail == DropTail {
		order = order[:n/count*count]
	}
	var mine []int
	for i := o.Shard.Index; i < len(order); i += count {
		mine = append(mine, order[i])
	}
	batches := slices.Collect(slices.Chunk(mine, max(o.BatchSize, 1)))
	if k := len(batches) - 1; k >= 0 && o.DropLast && len(batches[k]) < o.BatchSize {
		batches = batches[:k]
	}
	return batches
}

// TestResumeExhaustive: every small length, batch size, shard count, tail and worker count, and a resume after every
// batch, with another number of workers: what comes is what should, and nothing is lost or repeated.
func TestResumeExhaustive(t *testing.T) {
	for n := range 11 {
		data := numbers(n)
		for _, shard := range []Shard{{0, 0}, {0, 1}, {0, 2}, {1, 2}, {0, 3}, {1, 3}, {2, 3}} {
			for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
				for o := range 8 {
					opts := Options{BatchSize: 1 + o/2, DropLast: o%2 == 1, Shuffle: true, Seed: 7, Shard: shard, Tail: tail}
					resumeEverywhere(t, data, opts, expect(positions(Random(n, 7), 2), opts))
				}
			}
		}
	}
}

// TestResumeBatchSampler: the same under a batch sampler, whose batches are dealt out whole.
func TestResumeBatchSampler(t *testing.T) {
	for n := range 8 {
		s := Batches(Random(3*n, 7), 3, false)
		var order []int
		for k := range s.Len() {
			order = append(order, k)
		}
		for _, shard := range []Shard{{}, {0, 2}, {1, 2}, {2, 3}} {
			for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
				var want [][]int
				for _, k := range expect(order, Options{Shard: shard, Tail: tail}) {
					want = append(want, s.Batches(2)(k[0]))
				}
				resumeEverywhere(t, numbers(3*n), Options{BatchSampler: s, Shard: shard, Tail: tail}, want)
			}
		}
	}
}

// resumeEverywhere checks that epoch 2 is want, and its rest after every batch the rest of want.
func resumeEverywhere(t *testing.T, data Dataset[int], opts Options, want [][]int) {
	t.Helper()
	loaders := make([]*DataLoader[[]int], 4)
	for workers := range loaders {
		opts.Workers = workers
		loaders[workers] = newLoader(t, data, opts)
		equal(t, fmt.Sprintf("%+v: Len", opts), loaders[workers].Len(), len(want))
	}
	for workers, loader := range loaders {
		cursors := []Cursor{{Epoch: 2}}
		pos := 0
		at := cursors[0]
		for batch, err := range loader.Run(t.Context(), &at) {
			equal(t, fmt.Sprintf("%+v: batch", opts), batch, want[len(cursors)-1])
			if err != nil || at.Pos <= pos {
				t.Fatalf("error %v, or pos %d is not above %d", err, at.Pos, pos)
			}
			pos = at.Pos
			cursors = append(cursors, at)
		}
		equal(t, "batches", len(cursors)-1, len(want))
		equal(t, "cursor after the last", at, Cursor{Epoch: 3})
		for k, at := range cursors {
			resumed := loaders[(workers+k)%4]
			back := throughJSON(t, at)
			equal(t, fmt.Sprintf("%+v: after %d", opts, k), collect(t, resumed.Run(t.Context(), &back)), want[k:])
			equal(t, fmt.Sprintf("%+v: after %d, native", opts, k), collect(t, resumed.Run(t.Context(), &at)), want[k:])
			equal(t, "cursors after the rest", []Cursor{at, back}, []Cursor{{Epoch: 3}, {Epoch: 3}})
			if k < len(want) {
				equal(t, "Batch", must(loader.Batch(t.Context(), 2, k)), want[k])
			}
		}
	}
}

// TestElastic: after any step, another number of ranks goes on at the same global batch: each full global step has the
// same samples, and with UnevenTail every sample comes exactly once.
func TestElastic(t *testing.T) {
	const global = 12
	ranks := []int{1, 2, 3, 4, 6, 12}
	for n := range 40 {
		for _, before := range ranks {
			for _, after := range ranks {
				for stop := range n/global + 2 {
					var steps [][]int
					var at Cursor
					run := func(count, limit int) {
						first, start := len(steps), at
						for rank := range count {
							loader := newLoader(t, numbers(n), Options{BatchSize: global / count, Shuffle: true, Seed: 3, Shard: Shard{rank, count}, Tail: UnevenTail, Workers: rank % 2})
							cursor := throughJSON(t, start)
							k := 0
							if limit > 0 {
								for batch := range loader.Run(t.Context(), &cursor) {
									if first+k == len(steps) {
										steps = append(steps, nil)
									}
									steps[first+k] = append(steps[first+k], batch...)
									if k++; k == limit {
										break
									}
								}
							}
							if k == limit {
								at = cursor // any rank's will do
							}
						}
					}
					run(before, stop)
					if stop > 0 && at.Epoch == 0 && at.Pos == 0 {
						continue // the epoch has fewer steps
					}
					run(after, math.MaxInt)
					order := positions(Random(n, 3), 0)
					for k, want := range slices.Collect(slices.Chunk(order, global)) {
						slices.Sort(steps[k])
						slices.Sort(want)
						equal(t, fmt.Sprintf("n %d, %d ranks, after %d steps %d ranks: step %d", n, before, stop, after, k), steps[k], want)
					}
				}
			}
		}
	}
}

// TestUnorderedResume: over random stops, through JSON, with other numbers of workers, in order and out of it, every
// batch comes exactly once.
func TestUnorderedResume(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			n := 30 + random.IntN(60)
			data := Func(n, func(_ context.Context, i int) (int, error) {
				time.Sleep(time.Duration(mix(uint64(i)+seed) % 1000))
				if i%7 == 3 {
					return 0, errBad
				}
				return i, nil
			})
			opts := Options{BatchSize: 1 + random.IntN(3), Shuffle: true, Seed: seed, Shard: Shard{random.IntN(2), 2}, Tail: UnevenTail}
			if seed%2 == 1 {
				opts.OnError = func(*SampleError) error { return nil }
			}
			want, got := outcomes(newLoader(t, data, opts).Epoch(t.Context(), 1)), []string{}
			at := Cursor{Epoch: 1}
			for at.Epoch == 1 {
				opts.Workers, opts.Unordered = random.IntN(5), random.IntN(3) > 0
				stop := 1 + random.IntN(8)
				pos := at.Pos
				for batch, err := range newLoader(t, data, opts).Run(t.Context(), &at) {
					outcome := outcomes(func(yield func([]int, error) bool) { yield(batch, err) })[0]
					if err == nil || !slices.Contains(got, outcome) { // what failed just before the stop is tried again
						got = append(got, outcome)
					}
					if at.Pos < pos {
						t.Fatalf("pos %d after %d", at.Pos, pos)
					}
					if pos = at.Pos; stop == 0 {
						break
					} else if err == nil {
						stop = max(0, stop-1)
					}
				}
				if random.IntN(2) == 0 {
					at = throughJSON(t, at)
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			equal(t, "outcomes", got, want)
		})
	}
}

// TestFailedItem: Run leaves the cursor before a failed batch, moves on with the next success, and an error that has healed
// by the time of a resume changes nothing else.
func TestFailedItem(t *testing.T) {
	for _, workers := range []int{0, 2} {
		bad := []int{3, 4, 9}
		data := Func(10, func(ctx context.Context, i int) (int, error) { return failing(10, bad...).Get(ctx, i) })
		loader := newLoader(t, data, Options{Workers: workers})
		var at Cursor
		var pos []int
		for range loader.Run(t.Context(), &at) {
			pos = append(pos, at.Pos)
		}
		equal(t, "pos", pos, "[1 2 3 3 3 6 7 8 9 9]")
		equal(t, "in the end", at, Cursor{Epoch: 1})
		at = Cursor{}
		for _, err := range loader.Run(t.Context(), &at) {
			if err != nil {
				break
			}
		}
		bad = nil
		equal(t, "healed", collect(t, loader.Run(t.Context(), &at)), "[[3] [4] [5] [6] [7] [8] [9]]")
		for item, err := range loader.Stream()(t.Context(), Cursor{}) {
			equal(t, "Next", item.Next.Pos, item.Value[0]+1)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestCursorRefused: a cursor of another order is refused with both described, and left alone.
func TestCursorRefused(t *testing.T) {
	base := Options{Shuffle: true, Seed: 1, BatchSize: 2}
	var at Cursor
	for range newLoader(t, numbers(20), base).Run(t.Context(), &at) {
		break
	}
	ahead := Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []run{{1, 2}}, &Shard{0, 1}, 2}}
	other := func(change func(o *Options)) Options { o := base; change(&o); return o }
	for _, test := range []struct {
		name  string
		n     int
		opts  Options
		at    Cursor
		parts []string
	}{
		{"seed", 20, other(func(o *Options) { o.Seed = 2 }), at, []string{"epoch 0, pos 2", "Random(20, seed 1)", "Random(20, seed 2)"}},
		{"length", 21, base, at, []string{"Random(20, seed 1)", "Random(21, seed 1)"}},
		{"order", 20, other(func(o *Options) { o.Shuffle = false }), at, []string{"Random(20, seed 1)", "Sequential(20)"}},
		{"sampler of a user", 20, Options{Sampler: samplerFunc{n: 20}}, at, []string{"Random(20, seed 1)", "dataloader.samplerFunc(20)"}},
		{"batch sampler", 20, Options{BatchSampler: Batches(Random(20, 1), 2, false)}, at, []string{"Batches(Random(20, seed 1), 2)"}},
		{"seed of Rand", 20, Options{BatchSize: 2, Sampler: Random(20, 1)}, at, []string{"Options.Seed 1", "Options.Seed 0"}},
		{"no state", 20, base, Cursor{Pos: 4}, []string{"another stream", "pos 4"}},
		{"state of another kind", 20, base, Cursor{Pos: 4, State: "here"}, []string{"does not fit", "pos 4"}},
		{"beyond the end", 20, base, Cursor{Pos: 21, State: at.State}, []string{"pos 21", "at most 20"}},
		{"negative", 20, base, Cursor{Epoch: -1}, []string{"epoch -1", "must not be negative"}},
		{"out of order, other shard", 20, other(func(o *Options) { o.Shard = Shard{0, 2} }), ahead, []string{"out of order", "{0 1}", "{0 2}"}},
		{"out of order, other size", 20, other(func(o *Options) { o.BatchSize = 3 }), ahead, []string{"out of order", "batches of 2", "batches of 3"}},
		{"beyond the steps", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []run{{5, 10}}, &Shard{0, 1}, 2}}, []string{"damaged", "steps of 9"}},
		{"touching the mark", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []run{{0, 2}}, &Shard{0, 1}, 2}}, []string{"damaged"}},
		{"touching each other", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []run{{1, 2}, {2, 3}}, &Shard{0, 1}, 2}}, []string{"damaged"}},
		{"damaged", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []run{{5, 4}}, &Shard{0, 1}, 2}}, []string{"damaged", "[5 4]"}},
	} {
		for _, at := range []Cursor{test.at, throughJSON(t, test.at)} {
			before := fmt.Sprint(at)
			items := 0
			for _, err := range newLoader(t, numbers(test.n), test.opts).Run(t.Context(), &at) {
				saysAll(t, err, test.parts...)
				items++
			}
			equal(t, test.name+": pairs", items, 1)
			equal(t, test.name+": cursor", at, before)
		}
	}
	_, err := newLoader(t, numbers(4), Options{}).Batch(t.Context(), -1, 0)
	saysAll(t, err, "epoch -1")
	for _, k := range []int{-1, 4} {
		_, err = newLoader(t, numbers(4), Options{}).Batch(t.Context(), 0, k)
		saysAll(t, err, fmt.Sprint("batch ", k), "4 batches")
	}
}

// FuzzCursor: arbitrary bytes as a cursor never panic, hang or repeat a batch.
func FuzzCursor(f *testing.F) {
	f.Add([]byte(`{"epoch":1,"pos":4,"state":{"by":"Random(20, seed 1)","seed":1}}`))
	f.Add([]byte(`{"epoch":1,"pos":0,"state":{"by":"Random(20, seed 1)","seed":1,"done":[[1,3],[5,6]],"shard":{"Index":0,"Count":1},"size":2}}`))
	f.Add([]byte(`{"epoch":1,"pos":4,"state":{"by":"Random(20, seed 1)","seed":1,"done":[[1,9223372036854775807]],"shard":{"Index":0,"Count":1},"size":2}}`))
	f.Add([]byte(`{"epoch":-1,"pos":1e99,"state":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var at Cursor
		if json.Unmarshal(data, &at) != nil {
			return
		}
		for _, workers := range []int{0, 2} {
			seen := map[int]bool{}
			at := at
			for batch, err := range newLoader(t, numbers(20), Options{BatchSize: 2, Shuffle: true, Seed: 1, Workers: workers, Unordered: true}).Run(t.Context(), &at) {
				for _, i := range batch {
					if seen[i] {
						t.Fatalf("%s: sample %d comes twice", data, i)
					}
					seen[i] = true
				}
				if err != nil && len(seen) > 0 {
					t.Fatal(err)
				}
			}
		}
	})
}

// FuzzDeal: shards partition the positions, for every length, number of shards and batch size, from any position.
func FuzzDeal(f *testing.F) {
	f.Add(10, 0, 3, 2, 0)
	f.Add(1, 1, 4, 1, 1)
	f.Add(0, 0, 1, 1, 2)
	f.Add(10, 2, 2, 0, 1) // 8 positions for 3 shards
	f.Fuzz(func(t *testing.T, n, from, count, size, tail int) {
		n, count, size, tail = int(uint(n)%200), 1+int(uint(count)%9), 1+int(uint(size)%20), int(uint(tail)%3)
		from = int(uint(from) % uint(n+1))
		seen := make([]int, n)
		shares := map[int]bool{}
		for rank := range count {
			d := deal{n: n, size: min(size, n+1), shard: Shard{rank, count}, tail: Tail(tail)}.start(from)
			shares[d.mine] = true
			last := from
			for k := range d.steps() {
				for _, pos := range d.positions(nil, k) {
					seen[pos%n]++
				}
				if d.after(k+1) <= last || d.after(k+1) > n {
					t.Fatalf("%+v: after step %d: %d, before %d", d, k, d.after(k+1), last)
				}
				last = d.after(k + 1)
			}
		}
		extra, missing := 0, 0
		for pos, times := range seen {
			if pos < from && Tail(tail) != PadTail && times > 0 {
				t.Fatalf("position %d before %d", pos, from)
			}
			extra += max(0, times-1)
			if pos >= from && times == 0 {
				missing++
			}
		}
		if Tail(tail) == UnevenTail && (extra > 0 || missing > 0) ||
			Tail(tail) == PadTail && missing > 0 || Tail(tail) == DropTail && (extra > 0 || missing >= count) ||
			Tail(tail) != UnevenTail && len(shares) != 1 {
			t.Fatalf("n %d, from %d, count %d, size %d, tail %d: %d missing, %d extra, shares %v", n, from, count, size, tail, missing, extra, shares)
		}
	})
}

func TestCursorLoad(t *testing.T) {
	var at Cursor
	for range newLoader(t, numbers(3), Options{}).Run(t.Context(), &at) {
		if before := at; before != at { // can be compared
			t.Error("a cursor is not itself")
		}
	}
	type state struct {
		Big   int64
		Huge  uint64
		Inner []Cursor
	}
	want := state{math.MinInt64 + 1, math.MaxUint64 - 1, []Cursor{{1, 2, map[string]int{"a": 1<<62 + 1}}, {}}}
	c := Cursor{Epoch: 1, Pos: 1<<62 + 1, State: want}
	for _, c := range []Cursor{c, throughJSON(t, c), throughJSON(t, throughJSON(t, c))} {
		var got state
		if err := c.Load(&got); err != nil {
			t.Fatal(err)
		}
		equal(t, "integers", fmt.Sprint(got.Big, got.Huge, c.Pos), fmt.Sprint(want.Big, want.Huge, 1<<62+1))
		inner := map[string]int{}
		if err := got.Inner[0].Load(&inner); err != nil {
			t.Fatal(err)
		}
		equal(t, "nested", inner, "map[a:4611686018427387905]")
		got.Inner[1].Pos = 9
	}
	equal(t, "no memory is shared", want.Inner[1].Pos, 0)
	data, _ := json.Marshal(Cursor{Epoch: 3, Pos: 7744})
	equal(t, "JSON", string(data), `{"epoch":3,"pos":7744}`)
	var n int
	saysAll(t, Cursor{Epoch: 3, Pos: 4, State: "x"}.Load(&n), "epoch 3, pos 4", "does not fit")
}

// Samplers.

// TestRandomIsBijection: every index once, for all small lengths and around the powers of two and four, where others
// have lost samples, and for huge ones by undoing the network.
func TestRandomIsBijection(t *testing.T) {
	var lengths []int
	for n := range 301 {
		lengths = append(lengths, n)
	}
	for k := 9; k <= 18; k++ {
		lengths = append(lengths, 1<<k-1, 1<<k, 1<<k+1)
	}
	lengths = append(lengths, maxTable-1, maxTable+2, 1<<20+1, 1281167)
	for _, n := range lengths {
		for key := range 3 {
			order, seen := Random(n, uint64(key)).Order(2-key), make([]bool, n)
			for pos := range n {
				if i := order(pos); i < 0 || i >= n || seen[i] {
					t.Fatalf("n %d, seed %d: position %d has %d, which is outside or comes twice", n, key, pos, i)
				} else {
					seen[i] = true
				}
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for _, n := range []uint64{maxTable + 1, 1e6, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1e12, 1<<40 + 1, 1<<62 - 1, 1 << 62} {
		f := newFeistel(n, n)
		if domain := f.a << f.k; domain < n || domain-n > 1<<(f.k+1) {
			t.Errorf("n %d: the domain is %d", n, domain)
		}
		for range 1000 {
			pos := random.Uint64N(n)
			i := uint64(f.at(int(pos)))
			if i >= n {
				t.Fatalf("n %d: position %d has %d", n, pos, i)
			}
			if back := undo(f, i); back != pos {
				t.Fatalf("n %d: position %d has %d, which is position %d's", n, pos, i, back)
			}
		}
	}
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

// zScore says by how many standard deviations the chi-square statistic of counts misses its mean. Each count is
// expected to be in proportion to its weight, or all the same; what has weight 0 must not occur.
func zScore(t testing.TB, counts []int, weights ...float64) float64 {
	if weights == nil {
		weights = slices.Repeat([]float64{1}, len(counts))
	}
	n, total, chi, freedom := 0.0, 0.0, 0.0, -1.0
	for i, c := range counts {
		n, total = n+float64(c), total+weights[i]
	}
	for i, c := range counts {
		if weights[i] == 0 {
			if c > 0 {
				t.Error("something has occurred that cannot")
			}
			continue
		}
		mean := n * weights[i] / total
		chi += (float64(c) - mean) * (float64(c) - mean) / mean
		freedom++
	}
	return (chi - freedom) / math.Sqrt(2*freedom)
}

// TestRandomIsUniform: over the seeds, and the epochs, that people use, all permutations of few samples come equally
// often, and so do all ordered pairs of values at two positions: the test that weak networks fail.
func TestRandomIsUniform(t *testing.T) {
	byKey := map[string]func(n, key int) func(int) int{
		"seed":  func(n, key int) func(int) int { return Random(n, uint64(key)).Order(0) },
		"epoch": func(n, key int) func(int) int { return Random(n, 0).Order(key) },
	}
	for by, order := range byKey {
		for n, permutations := range map[int]int{3: 6, 4: 24, 5: 120} {
			counts := make([]int, permutations)
			for key := range 60000 {
				at, rank := order(n, key), 0
				for i := range n { // the number of the permutation in the factorial system
					smaller := 0
					for j := i + 1; j < n; j++ {
						if at(j) < at(i) {
							smaller++
						}
					}
					rank = rank*(n-i) + smaller
				}
				counts[rank]++
			}
			if z := zScore(t, counts); math.Abs(z) > 4 {
				t.Errorf("by %s, n %d: the permutations miss by %.1f standard deviations", by, n, z)
			}
		}
		for _, n := range []int{10, 33, 100, 300, 1000, maxTable, maxTable + 1, 1 << 16, 65537, 1281167} {
			bins := min(n, 16)
			size := func(bin int) float64 { return float64((bin+1)*n/bins - bin*n/bins) }
			weights := make([]float64, bins*bins)
			for x := range bins {
				for y := range bins {
					weights[x*bins+y] = size(x) * size(y)
				}
				weights[x*bins+x] -= size(x) // a value does not come twice
			}
			bin := func(value int) int { return ((value+1)*bins - 1) / n }
			for _, pair := range [][2]int{{0, 1}, {1, 2}, {0, n / 2}, {n - 2, n - 1}} {
				counts := make([]int, bins*bins)
				for key := range 20000 {
					at := order(n, key)
					counts[bin(at(pair[0]))*bins+bin(at(pair[1]))]++
				}
				if z := zScore(t, counts, weights...); math.Abs(z) > 4 {
					t.Errorf("by %s, n %d: pairs at %v miss by %.1f standard deviations", by, n, pair, z)
				}
			}
		}
	}
}

// TestRandomBatches: in a data set sorted by class, the classes are in each batch as chance has it. This is what a
// trainer would notice; four rounds of a balanced network fail it.
func TestRandomBatches(t *testing.T) {
	const classes, size, batches, seeds = 32, 128, 150, 12
	for _, n := range []int{4096, 50000, 1281167, 1 << 20, 1 << 30} {
		squares := 0.0
		for seed := range uint64(seeds) {
			order, chi := Random(n, seed).Order(0), 0.0
			total := min(batches, n/size)
			for b := range total {
				var counts [classes]int
				for j := range size {
					counts[order(b*size+j)*classes/n]++
				}
				for _, c := range counts {
					chi += math.Pow(float64(c)-size/classes, 2) / (size / classes)
				}
			}
			// drawn without replacement: the variance is smaller by (n-size)/(n-1)
			chi *= float64(n-1) / float64(n-size)
			freedom := float64(total * (classes - 1))
			if z := (chi - freedom) / math.Sqrt(2*freedom); n > 4096 { // below, batches of one epoch depend on each other
				squares += z * z
			}
		}
		if rms := math.Sqrt(squares / seeds); rms > 1.8 {
			t.Errorf("n %d: the batches miss by %.1f standard deviations", n, rms)
		}
	}
}

// TestSeedsAndEpochs: (seed, epoch) and (seed+1, epoch-1) agree no more than chance: in one position on
// average.
func TestSeedsAndEpochs(t *testing.T) {
	for _, n := range []int{1000, 100000} {
		agree := 0
		for seed := range uint64(100) {
			a, b := Random(n, seed).Order(5), Random(n, seed+1).Order(4)
			for pos := range n {
				if a(pos) == b(pos) {
					agree++
				}
			}
		}
		if agree < 60 || agree > 140 {
			t.Errorf("n %d: %d positions agree in 100 pairs of orders, want about 100", n, agree)
		}
	}
}

// TestGoldenOrders: orders are a promise, since a cursor has only the seed. These must not change.
func TestGoldenOrders(t *testing.T) {
	first := func(s Sampler, epoch, n int) string {
		var all []int
		for pos := range n {
			all = append(all, s.Order(epoch)(pos))
		}
		return fmt.Sprint(all)
	}
	weights := []float64{.1, .9, .4, .7, 3, .6}
	buckets := must(Buckets([]int{3, 9, 4, 4, 8, 1, 3, 9}, 18, 1)).Batches(0)
	ctx, _ := withScope(t.Context(), 0, 9, spot{2, 7, 0})
	for _, c := range [][2]string{
		{first(Random(10, 0), 0, 10), "[5 0 2 6 3 8 9 4 1 7]"},
		{first(Random(10, 0), 1, 10), "[2 6 7 0 9 1 4 5 8 3]"},
		{first(Random(10, 1), 0, 10), "[2 0 9 7 1 5 4 6 8 3]"},
		{first(Random(5000, 0), 0, 5), "[2496 3590 4037 2124 4576]"},
		{first(Random(1e12, 7), 0, 3), "[355048705807 329753703346 644169081424]"},
		{first(RandomWithReplacement(10, 10, 0), 0, 10), "[7 3 6 9 6 1 5 7 5 6]"},
		{first(must(Weighted(weights, 6, true, 0)), 0, 6), "[4 4 4 4 4 1]"},
		{first(must(Weighted(weights, 6, false, 0)), 0, 6), "[1 4 5 0 2 3]"},
		{fmt.Sprint(buckets(0), buckets(1), buckets(2), buckets(3)), "[3 2] [0 6] [5] [7 4]"},
		{fmt.Sprint(Rand(ctx).IntN(1000), Rand(ctx).IntN(1000)), "553 203"},
	} {
		equal(t, "an order that has changed", c[0], c[1])
	}
}

// torchOrders reads orders that torch has produced.
func torchOrders(t *testing.T) (g struct {
	Randperm []struct {
		N    int
		Seed uint64
		Out  []int
	}
	Distributed []struct {
		N, World, Epoch int
		Seed            uint64
		DropLast        bool `json:"drop_last"`
		Shuffle         bool
		Ranks           [][]int
	}
	RandomSplit []struct {
		N    int
		Seed uint64
		Out  [][]int
	} `json:"random_split"`
}) {
	data, err := os.ReadFile("testdata/torch_orders.json")
	if err == nil {
		err = json.Unmarshal(data, &g)
	}
	if err != nil || len(g.Randperm) == 0 || len(g.Distributed) == 0 || len(g.RandomSplit) == 0 {
		t.Fatal(err)
	}
	return g
}

// TestTorch: torch's own orders, element for element.
func TestTorch(t *testing.T) {
	g := torchOrders(t)
	for _, c := range g.Randperm {
		equal(t, fmt.Sprint("randperm ", c.N, c.Seed), positions(TorchRandom(c.N, c.Seed), 0), c.Out)
	}
	for _, c := range g.Distributed {
		opts := Options{BatchSize: 3, Tail: PadTail}
		if c.Shuffle {
			opts.Sampler = TorchRandom(c.N, c.Seed)
		}
		if c.DropLast {
			opts.Tail = DropTail
		}
		for rank, want := range c.Ranks {
			opts.Shard, opts.Workers = Shard{rank, c.World}, rank%3
			loader := newLoader(t, numbers(c.N), opts)
			equal(t, fmt.Sprintf("%+v rank %d", c, rank), slices.Concat(collect(t, loader.Epoch(t.Context(), c.Epoch))...), want)
		}
	}
	for _, c := range g.RandomSplit {
		var lengths []int
		for _, part := range c.Out {
			lengths = append(lengths, len(part))
		}
		for p, part := range must(Split(numbers(c.N), c.Seed, lengths...)) {
			equal(t, fmt.Sprintf("split %+v part %d", c, p), slices.Concat(collect(t, newLoader(t, part, Options{}).Epoch(t.Context(), 0))...), c.Out[p])
		}
	}
}

// TestDistributed: the tables of DistributedSampler's behaviour, and its edges.
func TestDistributed(t *testing.T) {
	for _, c := range []struct {
		n, count int
		tail     Tail
		want     string
	}{
		{10, 3, PadTail, "[[0 3 6 9] [1 4 7 0] [2 5 8 1]]"},
		{10, 3, DropTail, "[[0 3 6] [1 4 7] [2 5 8]]"},
		{10, 3, UnevenTail, "[[0 3 6 9] [1 4 7] [2 5 8]]"},
		{10, 4, PadTail, "[[0 4 8] [1 5 9] [2 6 0] [3 7 1]]"},
		{10, 4, DropTail, "[[0 4] [1 5] [2 6] [3 7]]"},
		{1, 4, PadTail, "[[0] [0] [0] [0]]"},
		{2, 5, PadTail, "[[0] [1] [0] [1] [0]]"},
		{2, 5, DropTail, "[[] [] [] [] []]"},
		{2, 3, UnevenTail, "[[0] [1] []]"},
		{0, 2, PadTail, "[[] []]"},
	} {
		var got [][]int
		for rank := range c.count {
			got = append(got, slices.Concat(collect(t, newLoader(t, numbers(c.n), Options{Shard: Shard{rank, c.count}, Tail: c.tail}).Epoch(t.Context(), 0))...))
		}
		equal(t, fmt.Sprintf("%+v", c), got, c.want)
	}
	sampler := func(epoch int) string {
		var got [][]int
		for rank := range 3 {
			opts := Options{Sampler: TorchRandom(10, 0), Shard: Shard{rank, 3}}
			got = append(got, slices.Concat(collect(t, newLoader(t, numbers(10), opts).Epoch(t.Context(), epoch))...))
		}
		return fmt.Sprint(got)
	}
	equal(t, "shuffled, epoch 0", sampler(0), "[[4 5 0 2] [1 3 8 4] [7 9 6 1]]")
	equal(t, "shuffled, epoch 1", sampler(1), "[[5 2 9 4] [6 0 3 5] [1 8 7 6]]")
	for _, tail := range []Tail{PadTail, DropTail} { // Count divides n: the samples are partitioned
		var all []int
		for rank := range 5 {
			mine := slices.Concat(collect(t, newLoader(t, numbers(100), Options{Shuffle: true, Shard: Shard{rank, 5}, Tail: tail}).Epoch(t.Context(), 0))...)
			equal(t, "share", len(mine), 20)
			all = append(all, mine...)
		}
		slices.Sort(all)
		equal(t, "union", all, positions(Sequential(100), 0))
	}
	total := 0 // the padding is at each rank's end, where DropLast takes it away
	for rank := range 4 {
		total += len(slices.Concat(collect(t, newLoader(t, numbers(9), Options{BatchSize: 2, DropLast: true, Shard: Shard{rank, 4}}).Epoch(t.Context(), 0))...))
	}
	equal(t, "padded and dropped", total, 8)
}

// TestHuge: lengths and batch sizes near the largest int.
func TestHuge(t *testing.T) {
	for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
		loader := newLoader(t, numbers(5), Options{BatchSize: math.MaxInt, Shard: Shard{1, 2}, Tail: tail})
		equal(t, "one batch of all", collect(t, loader.Epoch(t.Context(), 0)), map[Tail]string{PadTail: "[[1 3 0]]", DropTail: "[[1 3]]", UnevenTail: "[[1 3]]"}[tail])
	}
	_, err := New(numbers(math.MaxInt), List[int], Options{})
	saysAll(t, err, "length", strconv.Itoa(math.MaxInt), "at most")
	const n = 1 << 61
	loader := newLoader(t, numbers(n), Options{BatchSize: n / 4, Shard: Shard{2, 3}})
	equal(t, "batches", loader.Len(), 2)
	equal(t, "after one", loader.deal.after(1), 3*(n/4))
	equal(t, "after two", loader.deal.after(2), n)
	at := Cursor{Pos: n - 7, State: loaderState{By: fmt.Sprintf("Sequential(%d)", n)}}
	equal(t, "the end", collect(t, newLoader(t, numbers(n), Options{BatchSize: 2, Shard: Shard{2, 3}, Workers: 2}).Run(t.Context(), &at)), fmt.Sprint([][]int{{n - 5, n - 2}, {1}}))
}

// TestOrderFuncCopies: a caller that shuffles one slice in place does not disturb an epoch under way.
func TestOrderFuncCopies(t *testing.T) {
	indices := []int{0, 1, 2}
	s := OrderFunc(3, func(epoch int) []int {
		slices.Sort(indices)
		indices[0], indices[epoch] = indices[epoch], indices[0]
		return indices
	})
	first := s.Order(0)
	s.Order(2)
	equal(t, "epoch 0", []int{first(0), first(1), first(2)}, "[0 1 2]")
}

// TestAllocations: a batch of an epoch under way costs none, with List and Recycle, for any number of workers.
func TestAllocations(t *testing.T) {
	for workers := range 3 {
		loader := newLoader(t, numbers(4000), Options{BatchSize: 4, Shuffle: true, Workers: workers})
		each := testing.AllocsPerRun(5, func() {
			for batch := range loader.Epoch(t.Context(), 0) {
				loader.Recycle(batch)
			}
		})
		if each > 150 { // of the epoch, and of the memory for the first batches
			t.Errorf("%d workers: an epoch of 1000 batches has %v allocations", workers, each)
		}
	}
}

// TestLargeBatchType: a batch may be an array of any size. (The element of a channel may not.)
func TestLargeBatchType(t *testing.T) {
	loader, err := New(numbers(6), func(dst [20000]int, samples []int) ([20000]int, error) {
		copy(dst[:], samples)
		return dst, nil
	}, Options{BatchSize: 2, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	k := 0
	for batch, err := range loader.Stream().Prefetch(2).Epoch(t.Context(), 0) {
		equal(t, "batch", fmt.Sprint(batch[:2], err), fmt.Sprint([]int{k, k + 1}, nil))
		loader.Recycle(batch)
		k += 2
	}
	equal(t, "samples", k, 6)
}

// TestOrderHeals: an order that could not be computed is asked for again.
func TestOrderHeals(t *testing.T) {
	calls := 0
	s := OrderFunc(2, func(int) []int {
		if calls++; calls == 1 {
			panic("not yet")
		}
		return []int{1, 0}
	})
	loader := newLoader(t, numbers(2), Options{Sampler: s})
	equal(t, "first", len(outcomes(loader.Epoch(t.Context(), 0))), 2)
	equal(t, "then", outcomes(loader.Epoch(t.Context(), 0)), "[[1] [0]]")
	must(loader.Batch(t.Context(), 0, 1))
	equal(t, "calls", calls, 2)
}

func TestCounts(t *testing.T) {
	count := func(s Sampler, epoch int) map[int]int {
		counts := map[int]int{}
		for _, i := range positions(s, epoch) {
			if i < 0 || i >= 100 {
				t.Fatalf("%v: index %d", s, i)
			}
			counts[i]++
		}
		return counts
	}
	spread := func(counts map[int]int) (different, most int) {
		for _, c := range counts {
			most = max(most, c)
		}
		return len(counts), most
	}
	for _, c := range []struct{ count, different, most int }{{100, 100, 1}, {200, 100, 2}, {99, 99, 1}, {101, 100, 2}} {
		different, most := spread(count(Resize(Random(100, 1), c.count), 0))
		equal(t, fmt.Sprint("Resize to ", c.count), []int{different, most}, []int{c.different, c.most})
	}
	s, inner := Resize(Random(7, 1), 10), Random(7, 1)
	walk := slices.Concat(positions(s, 0), positions(s, 1), positions(s, 2))
	equal(t, "Resize walks on", walk, slices.Concat(positions(inner, 0), positions(inner, 1), positions(inner, 2), positions(inner, 3), positions(inner, 4))[:30])

	with := RandomWithReplacement(100, 101, 1)
	equal(t, "length", len(positions(with, 0)), 101)
	if different, _ := spread(count(with, 0)); different == 100 {
		t.Error("with replacement nothing is repeated")
	}
	counts := make([]int, 100)
	for i, c := range count(Resize(RandomWithReplacement(100, 10, 5), 100000), 0) {
		counts[i] = c
	}
	if z := zScore(t, counts); math.Abs(z) > 4 {
		t.Errorf("with replacement: %.1f standard deviations from uniform", z)
	}
}

func TestWeighted(t *testing.T) {
	draws := func(weights []float64, count int, replace bool, seed uint64) []float64 {
		shares := make([]float64, len(weights))
		for _, i := range positions(must(Weighted(weights, count, replace, seed)), 0) {
			shares[i] += 1 / float64(count)
		}
		return shares
	}
	near := func(what string, got, want, tolerance float64) {
		t.Helper()
		if math.Abs(got-want) > tolerance {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	shares := draws([]float64{0, 1, 0, 3}, 10000, true, 1)
	equal(t, "weight 0", shares[0]+shares[2], 0)
	near("three quarters", shares[3], .75, .02)
	for _, weights := range [][]float64{{1, 2, 3, 4}, {1e308, 1e308, 5e307}, {1e-300, 3e-300}, {0, 5}, {1, 1e-9, 1, 0, 1}, slices.Repeat([]float64{.1}, 1000)} {
		sum := 0.0
		for _, w := range weights {
			sum += w / 1e300
		}
		for i, share := range draws(weights, 200000, true, 3) {
			near(fmt.Sprint(weights[:min(9, len(weights))], " sample ", i), share, weights[i]/1e300/sum, .005)
			if weights[i] == 0 && share > 0 {
				t.Error("a sample of weight 0 is drawn")
			}
		}
	}
	perm := positions(must(Weighted([]float64{1, 5, 2, 9}, 4, false, 2)), 3)
	slices.Sort(perm)
	equal(t, "all without replacement", perm, "[0 1 2 3]")
	tiny := map[string]bool{} // weights so small that a waiting time would be infinite
	for epoch := range 20 {
		tiny[fmt.Sprint(positions(must(Weighted([]float64{1e-310, 1e-310, 1e-310}, 3, false, 2)), epoch))] = true
	}
	if len(tiny) < 4 {
		t.Errorf("tiny weights have only the orders %v", tiny)
	}
	first, then := 0, 0 // 3 of 4 come first; of the others, 2 of 3
	for epoch := range 20000 {
		order := must(Weighted([]float64{2, 0, 6, 1}, 2, false, 2)).Order(epoch)
		if order(0) == 2 {
			first++
			if order(1) == 0 {
				then++
			}
		}
	}
	near("first", float64(first)/20000, 6./9, .015)
	near("then", float64(then)/float64(first), 2./3, .015)
	for _, c := range []struct {
		weights []float64
		count   int
		replace bool
		parts   []string
	}{
		{[]float64{1, -1}, 1, true, []string{"weights[1] is -1", "not negative"}},
		{[]float64{1, math.NaN()}, 1, true, []string{"weights[1] is NaN"}},
		{[]float64{math.Inf(1)}, 1, false, []string{"weights[0] is +Inf", "finite"}},
		{[]float64{0, 0}, 1, true, []string{"none of the 2 weights is positive"}},
		{nil, 1, true, []string{"none of the 0 weights"}},
		{[]float64{1}, 0, true, []string{"count is 0", "positive"}},
		{[]float64{1, 2}, 3, false, []string{"count is 3", "at most 2"}},
		{[]float64{1, 0, 0}, 2, false, []string{"count is 2", "at most 1"}},
	} {
		_, err := Weighted(c.weights, c.count, c.replace, 0)
		saysAll(t, err, append(c.parts, "Weighted")...)
	}
	a, b := must(Weighted([]float64{1, 2}, 2, true, 0)), must(Weighted([]float64{2, 1}, 2, true, 0))
	if describe(a) == describe(b) {
		t.Error("other weights have the same description")
	}
}

func TestBuckets(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	lengths := make([]int, 2000)
	for i := range lengths {
		lengths[i] = int(random.ExpFloat64() * 50)
	}
	const budget = 1000
	s, err := Buckets(lengths, budget, 5)
	if err != nil {
		t.Fatal(err)
	}
	orders, contents, sizes := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for epoch := range 3 {
		var all, longests []string
		seen := make([]int, len(lengths))
		batches := s.Batches(epoch)
		padded, real := 0, 0
		for k := range s.Len() {
			batch := batches(k)
			longest := 0
			for _, i := range batch {
				seen[i]++
				longest = max(longest, lengths[i])
				real += lengths[i]
			}
			if len(batch) == 0 || longest*len(batch) > budget {
				t.Fatalf("batch %d of length %d with %d samples", k, longest, len(batch))
			}
			padded += longest * len(batch)
			longests = append(longests, fmt.Sprint(longest))
			slices.Sort(batch)
			all = append(all, fmt.Sprint(batch))
		}
		sizes[fmt.Sprint(longests)] = true
		slices.Sort(all)
		contents[fmt.Sprint(all)] = true
		equal(t, "every sample once", slices.Max(seen)*10+slices.Min(seen), 11)
		if waste := 1 - float64(real)/float64(padded); waste > .1 {
			t.Errorf("%.0f %% of the batches is padding", 100*waste)
		}
		orders[fmt.Sprint(batches(0))] = true
	}
	equal(t, "different first batches, orders of batches, and batches", []int{len(orders), len(sizes), len(contents)}, "[3 3 3]")
	if describe(s) == describe(must(Buckets(append(slices.Clone(lengths[1:]), 3), budget, 5))) {
		t.Error("other lengths have the same description")
	}
	equal(t, "no samples", must(Buckets(nil, 1, 0)).Len(), 0)
	equal(t, "the longest", must(Buckets([]int{math.MaxInt, 1}, math.MaxInt, 0)).Len(), 2)
	equal(t, "no lengths", len(must(Buckets(make([]int, 7), 3, 0)).Batches(0)(0)), 2)
	for _, c := range []struct {
		lengths []int
		budget  int
		parts   []string
	}{{[]int{1, 9}, 8, []string{"lengths[1] is 9", "8, the budget"}}, {[]int{-1}, 8, []string{"lengths[0] is -1"}}, {nil, 0, []string{"budget is 0", "positive"}}} {
		_, err := Buckets(c.lengths, c.budget, 0)
		saysAll(t, err, c.parts...)
	}
}

func TestShardFromEnv(t *testing.T) {
	all := []string{"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "PMI_RANK", "PMI_SIZE", "JOB_COMPLETION_INDEX"}
	for _, c := range []struct{ env, want string }{
		{"", "{0 0}"},
		{"WORLD_SIZE=1", "{0 0}"},
		{"RANK=2 WORLD_SIZE=4", "{2 4}"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "{1 2}"},
		{"SLURM_PROCID=3 SLURM_NTASKS=8", "{3 8}"},
		{"PMI_RANK=1 PMI_SIZE=3", "{1 3}"},
		{"SLURM_PROCID=3 SLURM_NTASKS=8 PMI_RANK=1 PMI_SIZE=3", "{3 8}"},
		{"JOB_COMPLETION_INDEX=5 WORLD_SIZE=6", "{5 6}"},
		{"RANK=0 WORLD_SIZE=2 SLURM_PROCID=3 SLURM_NTASKS=8", "{0 2}"},
		{"RANK= WORLD_SIZE=4", `RANK is "" and WORLD_SIZE is "4"`},
		{"RANK=2", `RANK is "2" and WORLD_SIZE is ""`},
		{"WORLD_SIZE=4", `WORLD_SIZE is "4" but RANK is not set`},
		{"RANK=4 WORLD_SIZE=4", `RANK is "4" and WORLD_SIZE is "4"`},
		{"RANK=-1 WORLD_SIZE=4", `RANK is "-1"`},
		{"RANK=one WORLD_SIZE=4", `RANK is "one"`},
		{"JOB_COMPLETION_INDEX=5", `JOB_COMPLETION_INDEX is "5" and WORLD_SIZE is ""`},
	} {
		t.Run(c.env, func(t *testing.T) {
			for _, name := range all {
				t.Setenv(name, "") // so that it is put back
				os.Unsetenv(name)
			}
			for _, setting := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(setting, "=")
				t.Setenv(name, value)
			}
			shard, err := ShardFromEnv()
			if c.want[0] == '{' && err == nil {
				equal(t, "shard", shard, c.want)
			} else {
				saysAll(t, err, c.want)
			}
		})
	}
}

// TestProcesses starts this test in 4 processes, as torchrun would; together they load the data set.
func TestProcesses(t *testing.T) {
	const n, count = 103, 4
	if os.Getenv("DATALOADER_TEST_PROCESS") != "" {
		shard := must(ShardFromEnv())
		loader := newLoader(t, numbers(n), Options{BatchSize: 5, Shuffle: true, Seed: 1, Shard: shard, Tail: UnevenTail, Workers: shard.Index})
		for batch := range loader.Epoch(t.Context(), 3) {
			fmt.Println("loaded", strings.Trim(fmt.Sprint(batch), "[]"))
		}
		return
	}
	var all []int
	for rank := range count {
		process := exec.Command(os.Args[0], "-test.run=^TestProcesses$", "-test.v")
		process.Env = append(os.Environ(), "DATALOADER_TEST_PROCESS=1", fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", count))
		out, err := process.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if indices, ok := strings.CutPrefix(line, "loaded "); ok {
				for _, field := range strings.Fields(indices) {
					all = append(all, must(strconv.Atoi(field)))
				}
			}
		}
	}
	slices.Sort(all)
	equal(t, "together", all, positions(Sequential(n), 0))
}

// Bad input.

// collateNil is no Collate.
var collateNil Collate[int, []int]

func TestBadOptions(t *testing.T) {
	for _, c := range []struct {
		opts  Options
		parts []string
	}{
		{Options{BatchSize: -1}, []string{"Options.BatchSize is -1", "positive"}},
		{Options{Workers: -1}, []string{"Options.Workers is -1", "not be negative"}},
		{Options{Workers: 1, Prefetch: -2}, []string{"Options.Prefetch is -2", "positive"}},
		{Options{Prefetch: 4}, []string{"Options.Prefetch is 4 without workers", "set Workers"}},
		{Options{Workers: math.MaxInt, Prefetch: 3}, []string{"Options.Workers × Prefetch", "× 3", "less than 2^31"}},
		{Options{Sampler: Sequential(3), Shuffle: true}, []string{"Options.Sampler excludes Shuffle"}},
		{Options{BatchSampler: raggedBatches{}, BatchSize: 1}, []string{"Options.BatchSampler excludes BatchSize (1)"}},
		{Options{BatchSampler: raggedBatches{}, Shuffle: true}, []string{"Options.BatchSampler excludes", "Shuffle (true)"}},
		{Options{BatchSampler: raggedBatches{}, Sampler: Sequential(3)}, []string{"Options.BatchSampler excludes", "Sampler (true)"}},
		{Options{BatchSampler: raggedBatches{}, DropLast: true}, []string{"Options.BatchSampler excludes", "DropLast (true)"}},
		{Options{Shard: Shard{3, 3}}, []string{"Options.Shard", "Index: 3", "Count: 3", "0 to 2"}},
		{Options{Shard: Shard{-1, 3}}, []string{"Options.Shard", "Index: -1", "0 to 2"}},
		{Options{Shard: Shard{1, 0}}, []string{"Options.Shard", "Index: 1", "0 to 0"}},
		{Options{Shard: Shard{0, -1}}, []string{"Options.Shard", "Count: -1", "not be negative"}},
		{Options{Tail: 7}, []string{"Options.Tail is 7", "UnevenTail"}},
		{Options{Tail: -1}, []string{"Options.Tail is -1"}},
		{Options{Sampler: samplerFunc{n: -3}}, []string{"samplerFunc", "-3", "not be negative"}},
	} {
		_, err := New(numbers(3), List[int], c.opts)
		saysAll(t, err, append(c.parts, "dataloader: ")...)
		if strings.Count(err.Error(), "dataloader: ") != 1 {
			t.Errorf("%q: the prefix comes once", err)
		}
	}
	_, err := New(nil, List[int], Options{})
	saysAll(t, err, "data set is nil")
	_, err = New(numbers(3), collateNil, Options{})
	saysAll(t, err, "Collate is nil")
	_, err = New(Dataset[int](negative{}), List[int], Options{})
	saysAll(t, err, "length is -5")

	short := OrderFunc(3, func(epoch int) []int { return make([]int, 2+epoch) })
	for _, workers := range []int{0, 2} {
		loader := newLoader(t, numbers(3), Options{Sampler: short, Workers: workers})
		for _, err := range loader.Epoch(t.Context(), 0) {
			saysAll(t, err, "OrderFunc: the order of epoch 0 has 2 positions, must have 3")
		}
		equal(t, "epoch 1", outcomes(loader.Epoch(t.Context(), 1)), "[[0] [0] [0]]")
		for _, bad := range []int{-2, 3} {
			sampler := OrderFunc(3, func(int) []int { return []int{0, bad, 1} })
			equal(t, "index outside", outcomes(newLoader(t, numbers(3), Options{Sampler: sampler, Workers: workers}).Epoch(t.Context(), 0)),
				fmt.Sprintf("[[0] error dataloader: epoch 0, batch 1, sample %d: index %d is outside the data set, which has 3 samples [1]]", bad, bad))
		}
	}
}

// TestEmptyBatch: a batch without samples is not passed over in silence.
func TestEmptyBatch(t *testing.T) {
	loader := newLoader(t, numbers(3), Options{BatchSampler: raggedBatches{{0}, {}, {2}}})
	equal(t, "outcomes", outcomes(loader.Epoch(t.Context(), 0)), "[[0] error dataloader: epoch 0, batch 1: the sampler gave no index [2]]")
}

type negative struct{}

func (negative) Len() int                              { return -5 }
func (negative) Get(context.Context, int) (int, error) { return 0, nil }

func TestBadArguments(t *testing.T) {
	mustPanic(t, func() { Func[int](-1, numbers(1).Get) }, "Func", "-1")
	mustPanic(t, func() { Func[int](1, nil) }, "Func", "nil")
	mustPanic(t, func() { Concat(numbers(1), nil) }, "Concat", "part 1")
	mustPanic(t, func() { Transform(numbers(1), (func(context.Context, int) (int, error))(nil)) }, "Transform", "nil")
	mustPanic(t, func() { Cache[int](nil) }, "Cache", "nil")
	mustPanic(t, func() { Retry[int](nil, 1, 0) }, "Retry", "nil")
	mustPanic(t, func() { Retry(numbers(1), 0, 0) }, "Retry", "attempts is 0", "at least 1")
	mustPanic(t, func() { Retry(numbers(1), 1, -time.Second) }, "Retry", "backoff is -1s")
	mustPanic(t, func() { Sequential(-1) }, "Sequential", "-1")
	mustPanic(t, func() { Random(-1, 0) }, "Random", "-1")
	mustPanic(t, func() { TorchRandom(-1, 0) }, "TorchRandom", "-1")
	mustPanic(t, func() { TorchRandom(1<<30, 0) }, "TorchRandom", "1073741824", "214748364")
	mustPanic(t, func() { RandomWithReplacement(-1, 1, 0) }, "RandomWithReplacement", "-1")
	mustPanic(t, func() { RandomWithReplacement(3, 0, 0) }, "RandomWithReplacement", "count is 0", "positive")
	mustPanic(t, func() { RandomWithReplacement(3, -1, 0) }, "count is -1")
	mustPanic(t, func() { RandomWithReplacement(0, 1, 0) }, "count is 1", "0 samples")
	mustPanic(t, func() { OrderFunc(1, nil) }, "OrderFunc", "nil")
	mustPanic(t, func() { OrderFunc(-1, func(int) []int { return nil }) }, "OrderFunc", "-1")
	mustPanic(t, func() { Resize(nil, 1) }, "Resize", "nil")
	mustPanic(t, func() { Resize(Sequential(3), 0) }, "Resize", "count is 0")
	mustPanic(t, func() { Batches(Sequential(3), 0, false) }, "Batches", "size is 0", "positive")
	mustPanic(t, func() { Batches(nil, 1, false) }, "Batches", "nil")
	mustPanic(t, func() { CollatePair[int, int, []int, []int](List[int], nil) }, "CollatePair", "nil")

	_, err := Pairs(numbers(3), numbers(4))
	saysAll(t, err, "Pairs", "3", "4")
	_, err = Pairs[int, int](nil, numbers(4))
	saysAll(t, err, "Pairs", "nil")
	_, err = Subset(numbers(3), []int{0, 3})
	saysAll(t, err, "Subset", "indices[1]", "index 3", "3 samples")
	_, err = Subset[int](nil, nil)
	saysAll(t, err, "Subset", "nil")
	_, err = Split(numbers(10), 1, -1, 11)
	saysAll(t, err, "Split", "lengths[0] is -1", "0 to 10")
	_, err = Split(numbers(10), 1, 3, 8)
	saysAll(t, err, "Split", "lengths[1] is 8", "0 to 7")
	_, err = Split(numbers(10), 1, 3, 6)
	saysAll(t, err, "Split", "sum to 9", "10")
	_, err = Split[int](nil, 1)
	saysAll(t, err, "Split", "nil")
	for _, shape := range [][]int{{2, 2}, {-1}, {3, -1}, {0, 7}, {1 << 62, 4}, {1 << 32, 1 << 32}, {1, 0}} {
		_, err = Rows(Tensor[int]{make([]int, 3), shape})
		saysAll(t, err, "Rows", "3 elements", fmt.Sprint(shape))
	}
	_, err = Rows(Tensor[int]{make([]int, 3), nil})
	saysAll(t, err, "Rows", "no dimension")
	for _, i := range []int{-1, 3} {
		for _, data := range []Dataset[int]{make(Slice[int], 3), numbers(3), Cache(numbers(3)), must(Subset(numbers(9), []int{1, 2, 3})), Concat(numbers(1), numbers(2))} {
			_, err := data.Get(t.Context(), i)
			saysAll(t, err, fmt.Sprint("index ", i), "3 samples")
		}
	}
}

// Data sets.

// values is a whole data set as a list.
func values[T any](t testing.TB, data Dataset[T]) []T {
	t.Helper()
	return slices.Concat(collect(t, newLoader(t, data, Options{}).Epoch(t.Context(), 0))...)
}

func TestDatasets(t *testing.T) {
	letters := Slice[string]{"a", "b", "c", "d", "e"}
	equal(t, "Pairs", values(t, must(Pairs(letters, numbers(5)))), "[{a 0} {b 1} {c 2} {d 3} {e 4}]")
	equal(t, "Concat", values(t, Concat[string](Slice[string]{}, letters[:2], Slice[string]{}, letters[2:], Slice[string]{})), letters)
	equal(t, "Concat of nothing", values(t, Concat[int]()), "[]")
	indices := []int{4, 0, 0}
	subset := must(Subset(letters, indices))
	indices[0] = 1
	equal(t, "Subset", values(t, subset), "[e a a]")
	equal(t, "Transform", values(t, Transform(numbers(3), func(_ context.Context, i int) (string, error) { return strconv.Itoa(i * i), nil })), "[0 1 4]")
	failed := Transform(failing(2, 0), func(_ context.Context, i int) (int, error) { return i, errors.New("not reached") })
	_, err := failed.Get(t.Context(), 0)
	equal(t, "Transform of a failed sample", err, errBad)

	parts := must(Split(numbers(100), 9, 80, 15, 0, 5))
	var all []int
	for p, n := range []int{80, 15, 0, 5} {
		equal(t, "part", parts[p].Len(), n)
		all = append(all, values(t, parts[p])...)
	}
	if slices.IsSorted(all) {
		t.Error("Split is not at random")
	}
	slices.Sort(all)
	equal(t, "together", all, values(t, numbers(100)))
}

// TestCache: each sample is fetched once, whoever asks; not an error; a waiter is not stuck with another's context.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := make([]atomic.Int64, 10)
		data := Cache(Func(10, func(ctx context.Context, i int) (int, error) {
			calls[i].Add(1)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			switch {
			case i == 3 && calls[i].Load() == 1:
				return 0, errBad
			case i == 4 && calls[i].Load() == 1:
				panic("ouch")
			case i == 5 && calls[i].Load() == 1:
				runtime.Goexit()
			}
			return i * i, nil
		}))
		var all sync.WaitGroup
		for w := range 20 {
			all.Go(func() {
				defer func() { recover() }()
				for i := range 10 {
					v, err := data.Get(t.Context(), (i+w)%10)
					if err == nil && v != (i+w)%10*((i+w)%10) || err != nil && err != errBad {
						t.Error(v, err)
					}
				}
			})
		}
		all.Wait()
		for i := range calls {
			want := int64(1)
			if i >= 3 && i <= 5 {
				want = 2
			}
			equal(t, fmt.Sprint("fetched ", i), calls[i].Load(), want)
		}

		data = Cache(Func(1, func(ctx context.Context, i int) (int, error) {
			select {
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			case <-time.After(time.Hour):
				return 7, nil
			}
		}))
		gone, cancel := context.WithTimeoutCause(t.Context(), time.Minute, io.EOF)
		defer cancel()
		all.Go(func() {
			if _, err := data.Get(gone, 0); err != io.EOF {
				t.Error(err)
			}
		})
		synctest.Wait()
		impatient, cancel2 := context.WithTimeoutCause(t.Context(), time.Second, io.ErrNoProgress)
		defer cancel2()
		start := time.Now()
		_, err := data.Get(impatient, 0) // waits for the first
		equal(t, "impatient", fmt.Sprint(err, time.Since(start)), fmt.Sprint(io.ErrNoProgress, time.Second))
		v, err := data.Get(t.Context(), 0) // waits for it too, and then fetches it itself
		equal(t, "patient", fmt.Sprint(v, err), "7 <nil>")
		all.Wait()
	})
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		data := Retry(Func(1, func(ctx context.Context, i int) (int, error) {
			Rand(ctx).Uint64()
			if calls++; calls%4 != 0 {
				return 0, errBad
			}
			return Rand(ctx).IntN(1000), nil
		}), 4, time.Second)
		ctx, s := withScope(t.Context(), 0, 1, spot{})
		Rand(ctx).Uint64() // drawn before Retry is called, and then
		Rand(ctx).Uint64()
		second := Rand(ctx).IntN(1000)
		s.move(spot{})
		Rand(ctx).Uint64()
		start := time.Now()
		v, err := data.Get(ctx, 0)
		equal(t, "at the fourth attempt, with the random numbers of a first", fmt.Sprint(v, err), fmt.Sprint(second, " <nil>"))
		if d := time.Since(start); d < 3500*time.Millisecond || d > 7*time.Second {
			t.Errorf("waited %v, want 1, 2 and 4 seconds less up to a half", d)
		}
		calls = 0
		data = Retry(Func(1, func(context.Context, int) (int, error) { calls++; return 0, errBad }), 3, 0)
		_, err = data.Get(t.Context(), 0)
		equal(t, "calls", calls, 3)
		if !errors.Is(err, errBad) {
			t.Error(err)
		}
		saysAll(t, err, "after 3 attempts: bad sample")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, io.ErrNoProgress)
		defer cancel()
		start = time.Now()
		_, err = Retry(failing(1, 0), math.MaxInt, math.MaxInt64).Get(ctx, 0)
		equal(t, "stops at ctx", fmt.Sprint(err, time.Since(start)), fmt.Sprint(io.ErrNoProgress, time.Minute))
	})
}

// tree is a file system with folders at two depths.
func tree(t *testing.T) fs.FS {
	files := fstest.MapFS{}
	for _, name := range []string{"a.txt", "b.png", "cat/1.png", "cat/2.png", "cat/old/0.png", "cat/.hidden", "dog/1.png", "dog/x/y/z.txt", ".git/config"} {
		files[name] = &fstest.MapFile{Data: []byte("in " + name)}
	}
	return files
}

func TestFiles(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		want     string
	}{
		{nil, ".git/config a.txt b.png cat/.hidden cat/1.png cat/2.png cat/old/0.png dog/1.png dog/x/y/z.txt"},
		{[]string{"*.png"}, "b.png"},
		{[]string{"*/*.png"}, "cat/1.png cat/2.png dog/1.png"},
		{[]string{"**/*.png"}, "b.png cat/1.png cat/2.png cat/old/0.png dog/1.png"},
		{[]string{"cat/**"}, "cat/.hidden cat/1.png cat/2.png cat/old/0.png"},
		{[]string{"cat/**/*.png"}, "cat/1.png cat/2.png cat/old/0.png"},
		{[]string{"**/x/**/z.*"}, "dog/x/y/z.txt"},
		{[]string{"dog/1.png"}, "dog/1.png"},
		{[]string{"[ab].*", "a.txt", "*/1.png"}, "a.txt b.png cat/1.png dog/1.png"},
	} {
		data, err := Files(tree(t), c.patterns...)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, file := range values(t, data) {
			names = append(names, file.Name)
			equal(t, "content", string(file.Data), "in "+file.Name)
		}
		equal(t, fmt.Sprint(c.patterns), strings.Join(names, " "), c.want)
	}
	for _, c := range []struct{ pattern, want string }{
		{"*.jpg", `pattern "*.jpg" matches no file`},
		{"cow/*.png", `pattern "cow/*.png" matches no file`},
		{"", `pattern "" matches no file`},
		{"a/[", "syntax error in pattern"},
		{"../x", "invalid argument"},
	} {
		_, err := Files(tree(t), "a.txt", c.pattern)
		saysAll(t, err, "dataloader: Files: ", c.want)
	}
	_, err := Files(nil)
	saysAll(t, err, "Files", "nil")
	equal(t, "an empty tree", must(Files(fstest.MapFS{})).Len(), 0)
	closed := closedFS{tree(t)} // folders that a pattern cannot match are not read
	for _, pattern := range []string{"*.png", "cat/*.png", "c*/*.png"} {
		if _, err := Files(closed, pattern); err != nil {
			t.Error(err)
		}
	}
	for _, pattern := range []string{"*/*.png", "**/*.png", "dog/*"} {
		if _, err := Files(closed, pattern); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", pattern, err)
		}
	}

	// On disk: lazily, through links to files, and a file that is gone is an error in its place.
	dir := t.TempDir()
	for _, name := range []string{"1", "2", "3"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	links := os.Symlink("1", filepath.Join(dir, "link")) == nil // not everywhere
	data := must(Files(os.DirFS(dir)))
	os.WriteFile(filepath.Join(dir, "1"), []byte("new"), 0o600)
	os.Remove(filepath.Join(dir, "2"))
	var got []string
	for batch, err := range newLoader(t, data, Options{Workers: 2}).Epoch(t.Context(), 0) {
		if err != nil {
			got = append(got, fmt.Sprint(errors.Is(err, fs.ErrNotExist)))
		} else {
			got = append(got, batch[0].Name+"="+string(batch[0].Data))
		}
	}
	want := []string{"1=new", "true", "3=3", "link=new"}
	if !links {
		want = want[:3]
	}
	equal(t, "on disk", got, want)
	os.Symlink("nowhere", filepath.Join(dir, "broken"))
	if _, err := Files(os.DirFS(dir)); links && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a broken link: %v", err)
	}

	// From a zip.
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	if err := w.AddFS(tree(t)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	zipped := must(zip.NewReader(bytes.NewReader(archive.Bytes()), int64(archive.Len())))
	equal(t, "zip", values(t, must(Files(zipped, "cat/*.png"))), values(t, must(Files(tree(t), "cat/*.png"))))
}

// closedFS is a file system of which the folder dog cannot be read.
type closedFS struct{ fs.FS }

func (c closedFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == "dog" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return fs.ReadDir(c.FS, name)
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"root/cat/1", "elsewhere/2"} {
		os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700)
		os.WriteFile(filepath.Join(dir, name), nil, 0o600)
	}
	if os.Symlink("../elsewhere", filepath.Join(dir, "root/dog")) == nil { // a class may be a link
		data, classes, err := Folder(os.DirFS(filepath.Join(dir, "root")))
		equal(t, "with a link", fmt.Sprint(data.Len(), classes, err), "2 [cat dog] <nil>")
		equal(t, "its file", must(data.Get(t.Context(), 1)).First.Name, "dog/2")
	}
	data, classes, err := Folder(tree(t))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "classes", classes, "[cat dog]")
	var got []string
	for _, sample := range values(t, data) {
		got = append(got, fmt.Sprint(sample.First.Name, "=", sample.Second))
		equal(t, "content", string(sample.First.Data), "in "+sample.First.Name)
	}
	equal(t, "samples", got, "[cat/1.png=0 cat/2.png=0 cat/old/0.png=0 dog/1.png=1 dog/x/y/z.txt=1]")

	data, _, err = Folder(fstest.MapFS{"cat/.old/1": {}, "cat/2": {}, "cat/.3": {}})
	equal(t, "hidden ones", fmt.Sprint(data.Len(), err), "1 <nil>")
	_, _, err = Folder(fstest.MapFS{"a.txt": {}})
	saysAll(t, err, "Folder", "no folder")
	_, _, err = Folder(fstest.MapFS{"cat/1": {}, "dog": {Mode: fs.ModeDir}})
	saysAll(t, err, "Folder", `class "dog" has no file`)
	_, _, err = Folder(nil)
	saysAll(t, err, "Folder", "nil")
	_, _, err = Folder(os.DirFS(filepath.Join(t.TempDir(), "missing")))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// Collate.

func TestCollates(t *testing.T) {
	batch := must(Stack(Tensor[int]{}, []Tensor[int]{{[]int{1, 2}, []int{2}}, {[]int{3, 4}, []int{2}}}))
	equal(t, "Stack", batch, "{[1 2 3 4] [2 2]}")
	again := must(Stack(batch, []Tensor[int]{{[]int{5, 6}, []int{1, 2}}}))
	equal(t, "Stack again", again, "{[5 6] [1 1 2]}")
	if &again.Data[0] != &batch.Data[0] {
		t.Error("Stack does not use the memory of dst")
	}
	equal(t, "numbers", must(Stack(Tensor[int]{}, []Tensor[int]{{[]int{5}, nil}, {[]int{6}, nil}})), "{[5 6] [2]}")
	for _, samples := range [][]Tensor[int]{
		{{[]int{1, 2}, []int{2}}, {[]int{1}, []int{1}}},
		{{[]int{1}, []int{1}}, {[]int{1, 2}, []int{2}}},
		{{[]int{1, 2}, []int{2}}, {[]int{1, 2}, []int{2, 1}}},
		{{[]int{1, 2}, []int{2}}, {[]int{1}, []int{2}}},
	} {
		_, err := Stack(Tensor[int]{}, samples)
		saysAll(t, err, "sample 1", fmt.Sprint(samples[0].Shape), fmt.Sprint(samples[1].Shape))
	}
	wrong := Tensor[int]{[]int{1, 2, 3}, []int{2}}
	_, err := Stack(Tensor[int]{}, []Tensor[int]{wrong, wrong})
	saysAll(t, err, "sample 0", "shape [2]", "3 elements")
	_, err = Stack(Tensor[int]{}, nil)
	saysAll(t, err, "no samples")

	pad := Pad(-1)
	ragged := must(pad(Ragged[int]{}, [][]int{{1}, {2, 3, 4}, {}}))
	equal(t, "Pad", ragged, "{{[1 -1 -1 2 3 4 -1 -1 -1] [3 3]} [1 3 0]}")
	equal(t, "Pad again", must(pad(ragged, [][]int{{7, 8}})), "{{[7 8] [1 2]} [2]}")
	equal(t, "Pad nothing", must(pad(ragged, [][]int{{}, {}})), "{{[] [2 0]} [0 0]}")

	table := must(Rows(Tensor[int]{[]int{1, 2, 3, 4, 5, 6}, []int{3, 2}}))
	equal(t, "Rows", values(t, table), "[{[1 2] [2]} {[3 4] [2]} {[5 6] [2]}]")
	row := must(table.Get(t.Context(), 0))
	if row.Data = append(row.Data, 9); must(table.Get(t.Context(), 1)).Data[0] != 3 {
		t.Error("to append to a row changes the next")
	}
	equal(t, "rows of a vector", values(t, must(Rows(Tensor[int]{[]int{1, 2}, []int{2}}))), "[{[1] []} {[2] []}]")
	equal(t, "empty rows", values(t, must(Rows(Tensor[int]{nil, []int{2, 0}}))), "[{[] [0]} {[] [0]}]")
}

// TestRecycle: batches are built in memory that was given back, and only in that.
func TestRecycle(t *testing.T) {
	for _, workers := range []int{0, 3} {
		table := must(Rows(Tensor[int]{positions(Sequential(200), 0), []int{100, 2}}))
		loader := must(New(table, Stack[int], Options{BatchSize: 5, Workers: workers}))
		kept := map[string][]int{}
		memory := map[*int]bool{}
		k := 0
		for batch, err := range loader.Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "batch", batch.Data, positions(Sequential(200), 0)[k*10:(k+1)*10])
			memory[&batch.Data[0]] = true
			if k%5 == 0 {
				kept[fmt.Sprint(batch.Data)] = batch.Data
			} else {
				loader.Recycle(batch)
			}
			k++
		}
		for want, batch := range kept {
			equal(t, "a batch that was kept", batch, want)
		}
		if most := 4 + workers*2 + 2; len(memory) > most {
			t.Errorf("%d batches in %d places, want at most %d", k, len(memory), most)
		}
	}
}

// TestRecycleDropped: the memory of a batch of which nothing was left serves the next.
func TestRecycleDropped(t *testing.T) {
	bad := positions(Sequential(100), 0)
	bad = slices.DeleteFunc(bad, func(i int) bool { return i%2 == 0 })
	loader := newLoader(t, failing(100, bad...), Options{OnError: func(*SampleError) error { return nil }})
	memory := map[*int]bool{}
	for batch := range loader.Epoch(t.Context(), 0) {
		memory[&batch[0]] = true
		loader.Recycle(batch)
	}
	equal(t, "places", len(memory), 1)
}

// Randomness.

// TestRand: the random numbers of a sample are the same for every number of workers, in order or not, after a resume,
// for any number of ranks and by Batch; others for each sample, epoch and seed.
func TestRand(t *testing.T) {
	augmented := Func(24, func(ctx context.Context, i int) (uint64, error) {
		other := WithSeed(ctx, 99)
		if Rand(ctx) != Rand(ctx) || Rand(other) != Rand(other) {
			t.Error("a sample has two generators")
		}
		return Rand(ctx).Uint64() ^ Rand(ctx).Uint64() ^ Rand(other).Uint64(), nil
	})
	base := Options{Shuffle: true, Seed: 5, BatchSize: 4}
	with := func(change func(o *Options)) *DataLoader[[]uint64] {
		opts := base
		change(&opts)
		return newLoader(t, augmented, opts)
	}
	want := collect(t, with(func(o *Options) {}).Epoch(t.Context(), 1))
	seen := map[uint64]bool{}
	for _, loader := range []*DataLoader[[]uint64]{with(func(o *Options) {}), with(func(o *Options) { o.Seed = 6 })} {
		for epoch := range 3 {
			for _, batch := range collect(t, loader.Epoch(t.Context(), epoch)) {
				for _, v := range batch {
					seen[v] = true
				}
			}
		}
	}
	equal(t, "different numbers", len(seen), 2*3*24)
	for workers := range 4 {
		loader := with(func(o *Options) { o.Workers = workers })
		equal(t, "workers", collect(t, loader.Epoch(t.Context(), 1)), want)
		equal(t, "Batch", must(loader.Batch(t.Context(), 1, 2)), want[2])
		at := Cursor{Epoch: 1}
		for range loader.Run(t.Context(), &at) {
			break
		}
		equal(t, "resumed", collect(t, loader.Run(t.Context(), &at)), want[1:])
		unordered := collect(t, with(func(o *Options) { o.Workers, o.Unordered = workers, true }).Epoch(t.Context(), 1))
		slices.SortFunc(unordered, slices.Compare)
		sorted := slices.Clone(want)
		slices.SortFunc(sorted, slices.Compare)
		equal(t, "unordered", unordered, sorted)
	}
	a := collect(t, with(func(o *Options) { o.BatchSize, o.Shard = 2, Shard{0, 2} }).Epoch(t.Context(), 1))
	b := collect(t, with(func(o *Options) { o.BatchSize, o.Shard = 2, Shard{1, 2} }).Epoch(t.Context(), 1))
	for k := range want {
		equal(t, "ranks", []uint64{a[k][0], b[k][0], a[k][1], b[k][1]}, want[k])
	}
	batches := newLoader(t, augmented, Options{BatchSampler: Batches(Sequential(24), 4, false), Workers: 2})
	flat := slices.Concat(collect(t, batches.Epoch(t.Context(), 0))...)
	slices.Sort(flat)
	equal(t, "different numbers under a batch sampler", len(slices.Compact(flat)), 24)

	cached := Cache(augmented) // depends on the sample alone, not on when it was fetched first
	first := collect(t, newLoader(t, cached, base).Epoch(t.Context(), 0))
	equal(t, "cached", collect(t, newLoader(t, Cache(augmented), Options{Shuffle: true, Seed: 5, BatchSize: 4, Workers: 2}).Epoch(t.Context(), 3)),
		collect(t, newLoader(t, cached, base).Epoch(t.Context(), 3)))
	equal(t, "cached", collect(t, newLoader(t, cached, base).Epoch(t.Context(), 0)), first)

	equal(t, "outside", Rand(t.Context()).Uint64(), Rand(t.Context()).Uint64())
	if Rand(WithSeed(t.Context(), 1)).Uint64() == Rand(WithSeed(t.Context(), 2)).Uint64() {
		t.Error("WithSeed has no effect")
	}
}

// TestRandBatchGetter: one generator for the batch.
func TestRandBatchGetter(t *testing.T) {
	data := randomBatches{make(Slice[uint64], 10)}
	want := collect(t, newLoader(t, Dataset[uint64](data), Options{BatchSize: 3}).Epoch(t.Context(), 0))
	equal(t, "workers", collect(t, newLoader(t, Dataset[uint64](data), Options{BatchSize: 3, Workers: 2}).Epoch(t.Context(), 0)), want)
	equal(t, "Batch", must(newLoader(t, Dataset[uint64](data), Options{BatchSize: 3}).Batch(t.Context(), 0, 2)), want[2])
	flat := slices.Concat(want...)
	slices.Sort(flat)
	equal(t, "different numbers", len(slices.Compact(flat)), 10)
}

type randomBatches struct{ Slice[uint64] }

func (randomBatches) GetBatch(ctx context.Context, indices []int) ([]uint64, error) {
	batch := make([]uint64, len(indices))
	for j := range batch {
		batch[j] = Rand(ctx).Uint64()
	}
	return batch, nil
}

func TestWorker(t *testing.T) {
	for _, workers := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			data := Func(12, func(ctx context.Context, i int) (int, error) {
				time.Sleep(time.Second)
				return Worker(WithSeed(ctx, 1)), nil
			})
			seen := values(t, must(Subset(data, []int{0})))
			equal(t, "caller", seen, "[-1]")
			seen = slices.Concat(collect(t, newLoader(t, data, Options{Workers: workers}).Epoch(t.Context(), 0))...)
			slices.Sort(seen)
			want := positions(Sequential(workers), 0)
			if workers == 0 {
				want = []int{-1}
			}
			equal(t, "workers", slices.Compact(seen), want)
		})
	}
	equal(t, "outside", Worker(t.Context()), -1)
}

// Streams.

// checkStream puts a stream through everything that a cursor promises, in the given epoch: it resumes after every item,
// failed ones included, natively and through JSON, once and twice; a cursor never changes once it is handed out; two
// iterations at once do not meet; an ended context is the last pair wherever it ends, and leaves the cursor; leaving
// early leaves no goroutine. It returns the epoch's outcomes.
func checkStream[T any](t *testing.T, s Stream[T], epoch int) []string {
	t.Helper()
	var want []string
	synctest.Test(t, func(t *testing.T) {
		at := Cursor{Epoch: epoch}
		cursors, saved := []Cursor{at}, []string{}
		save := func(c Cursor) string { return string(must(json.Marshal(c))) }
		pos := 0
		for item, err := range s(t.Context(), at) {
			want = append(want, outcomes(one(item.Value, err))...)
			cursors = append(cursors, item.Next)
			saved = append(saved, save(item.Next))
			if item.Next.Epoch != epoch || item.Next.Pos <= pos {
				t.Fatalf("item %d: next is epoch %d, pos %d, after pos %d", len(want), item.Next.Epoch, item.Next.Pos, pos)
			}
			pos = item.Next.Pos
		}
		for k, c := range cursors[1:] {
			equal(t, "a cursor some time later", save(c), saved[k])
		}
		equal(t, "Epoch", outcomes(s.Epoch(t.Context(), epoch)), want)
		for k, c := range cursors {
			for _, at := range []Cursor{c, throughJSON(t, c)} {
				equal(t, fmt.Sprintf("after %d items, from %s", k, save(c)), outcomes(s.Run(t.Context(), &at)), want[k:])
				equal(t, "then", at, Cursor{Epoch: epoch + 1})
			}
			equal(t, "the cursor that was used", save(c), append([]string{save(cursors[0])}, saved...)[k])
			n := 0
			for item := range s(t.Context(), c) { // on for two, and again
				if n++; n == 2 {
					equal(t, "after two more", outcomes(s.Run(t.Context(), ptr(throughJSON(t, item.Next)))), want[k+2:])
					break
				}
			}
		}
		for k := range want {
			stopped := errors.New("stopped")
			ctx, cancel := context.WithCancelCause(t.Context())
			if k == 0 {
				cancel(stopped)
			}
			at, n := cursors[0], 0
			var last error
			for _, last = range s.Run(ctx, &at) {
				if last != stopped {
					if n++; n == k {
						cancel(stopped)
					}
				}
			}
			if n != k || last != stopped {
				t.Fatalf("stopped after %d items: %d came, and then %v", k, n, last)
			}
			rest := outcomes(s.Run(t.Context(), &at))
			equal(t, "what a stop has left", rest[max(0, len(rest)-len(want)+k):], want[k:])
			cancel(nil)
		}
		next1, stop1 := iter.Pull2(s.Epoch(t.Context(), epoch))
		next2, stop2 := iter.Pull2(s.Epoch(t.Context(), epoch))
		defer stop1()
		defer stop2()
		for k := range want {
			v1, err1, _ := next1()
			v2, err2, _ := next2()
			equal(t, "two at once", [][]string{outcomes(one(v1, err1)), outcomes(one(v2, err2))}, [][]string{{want[k]}, {want[k]}})
		}
	})
	return want
}

// one is a sequence of one pair.
func one[T any](v T, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) { yield(v, err) }
}

// ptr is a pointer to a copy of v.
func ptr[T any](v T) *T { return &v }

// counting is the stream 0, 1, …, n-1, plus 100 times the epoch, from a sequence, but for the items that fail.
func counting(n int, bad ...int) Stream[int] {
	return FromSeq(func(ctx context.Context, epoch int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				var err error
				if slices.Contains(bad, i) {
					err = fmt.Errorf("item %d is bad", i)
				}
				if !yield(100*epoch+i, err) {
					return
				}
			}
		}
	})
}

// double is twice a number, slowly, with some random noise, but for the multiples of 17, which fail.
func double(ctx context.Context, i int) (int, error) {
	time.Sleep(time.Duration(Rand(ctx).IntN(1000)))
	if i%17 == 16 {
		return 0, errBad
	}
	return 2*i + 10000*Rand(ctx).IntN(3), nil
}

// TestStreams is the table of all streams, alone and deeply composed: what an epoch gives, and the whole protocol.
func TestStreams(t *testing.T) {
	loader := newLoader(t, numbers(11), Options{BatchSize: 2, Shuffle: true, Seed: 3, Workers: 2})
	sum := func(dst int, samples []int) (int, error) {
		for _, s := range samples {
			dst += s
		}
		return dst, nil
	}
	odd := func(i int) bool { return i%2 == 1 }
	letters := func(s string) Stream[string] {
		return Map(Indices(Sequential(len(s))), 0, func(_ context.Context, i int) (string, error) { return s[i : i+1], nil })
	}
	deep := func(workers int) Stream[[]int] {
		tars := Mix(MixOptions{Stop: StopAtLast}, counting(13, 4).Prefetch(2), counting(5), counting(9, 0, 8))
		mixed := Mix(MixOptions{Weights: []float64{2, 1}, Seed: 5, Stop: CycleUntilLast}, Map(tars.Shuffle(4, 1), workers, double), counting(7))
		return Batch(mixed, 3, List[int]).Prefetch(2)
	}
	for _, c := range []struct {
		name string
		s    any
		want string // in epoch 0, if it is to be compared
	}{
		{"FromSeq", counting(4), "[0 1 2 3]"},
		{"FromSeq with failures", counting(4, 0, 3), "[error item 0 is bad 1 2 error item 3 is bad]"},
		{"FromSeq of nothing", counting(0), "[]"},
		{"Indices", Indices(OrderFunc(3, func(e int) []int { return []int{2, e, 1} })), "[2 0 1]"},
		{"Indices, Random", Indices(Random(20, 1)), ""},
		{"loader", loader.Stream(), ""},
		{"Filter", counting(9, 3).Filter(odd), "[1 error item 3 is bad 5 7]"},
		{"Filter nothing", counting(9).Filter(func(int) bool { return false }), "[]"},
		{"Take", counting(9, 1).Take(3), "[0 error item 1 is bad 2]"},
		{"Take more", counting(3).Take(10), "[0 1 2]"},
		{"Take none", counting(3).Take(0), "[]"},
		{"Repeat", counting(2, 1).Repeat(3), "[0 error item 1 is bad 100 error item 1 is bad 200 error item 1 is bad]"},
		{"Repeat once", counting(2).Repeat(1), "[0 1]"},
		{"Repeat nothing", counting(0).Repeat(3), "[]"},
		{"Repeat forever", counting(2).Repeat(0).Take(5), "[0 1 100 101 200]"},
		{"Shard", counting(8, 4).Shard(Shard{1, 3}), "[1 error item 4 is bad 7]"},
		{"Shard 0 of 1", counting(3).Shard(Shard{}), "[0 1 2]"},
		{"Chain", Chain(counting(2), counting(0), counting(3, 0)), "[0 1 error item 0 is bad 1 2]"},
		{"Chain of none", Chain[int](), "[]"},
		{"Zip", Zip(counting(4, 1), counting(3, 2)), "[{0 0} error item 1 is bad error item 2 is bad]"},
		{"Zip, second longer", Zip(counting(2), letters("abc")), "[{0 a} {1 b}]"},
		{"Batch", Batch(counting(7, 4), 2, List[int]), "[[0 1] [2 3] error item 4 is bad [6]]"},
		{"Batch, even", Batch(counting(4), 2, sum), "[1 5]"},
		{"Batch of nothing", Batch(counting(0), 2, List[int]), "[]"},
		{"Unbatch", Unbatch(Batch(counting(5, 2), 2, List[int])), "[0 1 error item 2 is bad 4]"},
		{"Unbatch of empty ones", Unbatch(Map(counting(4), 0, func(_ context.Context, i int) ([]int, error) { return make([]int, i%3), nil })), "[0 0 0]"},
		{"batch, map, unbatch, batch", Batch(Unbatch(Map(Batch(counting(8), 3, List[int]), 2, func(_ context.Context, b []int) ([]int, error) { return append(b, -1), nil })), 4, List[int]), "[[0 1 2 -1] [3 4 5 -1] [6 7 -1]]"},
		{"Map", Map(counting(20, 5), 0, double), ""},
		{"Map, 1 worker", Map(counting(20, 5), 1, double), fmt.Sprint(outcomes(Map(counting(20, 5), 0, double).Epoch(t.Context(), 0)))},
		{"Map, 3 workers", Map(counting(20, 5), 3, double), fmt.Sprint(outcomes(Map(counting(20, 5), 0, double).Epoch(t.Context(), 0)))},
		{"Map of nothing", Map(counting(0), 3, double), "[]"},
		{"Prefetch", counting(5, 2).Prefetch(2), "[0 1 error item 2 is bad 3 4]"},
		{"Prefetch 1", counting(3).Prefetch(1), "[0 1 2]"},
		{"Prefetch more", counting(3).Prefetch(100), "[0 1 2]"},
		{"Prefetch of nothing", counting(0).Prefetch(3), "[]"},
		{"Shuffle", counting(23, 7).Shuffle(5, 1), ""},
		{"Shuffle 1", counting(4).Shuffle(1, 1), "[0 1 2 3]"},
		{"Shuffle all", counting(9).Shuffle(100, 1), ""},
		{"Shuffle nothing", counting(0).Shuffle(5, 1), "[]"},
		{"Mix first", Mix(MixOptions{}, letters("a"), letters("bB"), letters("cCc")), "[a b c]"},
		{"Mix last", Mix(MixOptions{Stop: StopAtLast}, letters("a"), letters("bB"), letters("cCx")), "[a b c B C x]"},
		{"Mix cycle", Mix(MixOptions{Stop: CycleUntilLast}, letters("a"), letters("bB"), letters("cCx")), "[a b c a B C a b x a B]"},
		{"Mix forever", Mix(MixOptions{Stop: CycleForever}, counting(1), counting(2)).Take(7), "[0 0 100 1 200 100 300]"},
		{"Mix last, one empty", Mix(MixOptions{Stop: StopAtLast}, letters(""), letters("ab")), "[a b]"},
		{"Mix by weight", Mix(MixOptions{Weights: []float64{1, 3, 2}, Seed: 1, Stop: StopAtLast}, counting(5, 1), counting(6), counting(3)), ""},
		{"Mix by weight, first", Mix(MixOptions{Weights: []float64{1, 3}, Seed: 2}, counting(5), counting(6)), ""},
		{"Mix by weight, cycle", Mix(MixOptions{Weights: []float64{1, 3, .5}, Seed: 3, Stop: CycleUntilLast}, counting(2), counting(6), counting(3)), ""},
		{"a loader, mapped", Map(loader.Stream(), 2, func(_ context.Context, b []int) (int, error) { return sum(0, b) }), ""},
		{"two loaders, mixed", Mix(MixOptions{Stop: StopAtLast}, loader.Stream(), newLoader(t, failing(5, 2), Options{}).Stream()), ""},
		{"deep", deep(0), ""},
		{"deep, 2 workers", deep(2), fmt.Sprint(outcomes(deep(0).Epoch(t.Context(), 0)))},
		{"repeat of take of shuffle", Indices(Random(9, 1)).Shuffle(4, 2).Take(5).Repeat(3), ""},
		{"shuffle of repeat", Map(counting(3, 1).Repeat(4), 2, double).Shuffle(5, 9), ""},
		{"zip of mix and chain", Zip(Mix(MixOptions{}, counting(6), counting(5, 3)), Chain(counting(3), counting(9)).Prefetch(2)), ""},
		{"shard of unbatch", Batch(Unbatch(Batch(counting(17, 5), 4, List[int])).Shard(Shard{1, 2}), 2, List[int]).Prefetch(3), ""},
		{"filter of map of indices", Map(Map(Indices(Random(30, 4)), 3, double).Filter(odd), 0, double).Take(6), ""},
		{"mix of repeats", Mix(MixOptions{Weights: []float64{1, 1}, Stop: StopAtFirst}, counting(2, 1).Repeat(0), counting(3).Repeat(4)).Prefetch(4), ""},
		{"chain of mixes", Chain(Mix(MixOptions{Stop: StopAtLast}, counting(3), counting(2)), Mix(MixOptions{Stop: CycleUntilLast}, counting(1), counting(3))).Shuffle(3, 3), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			check := func(epoch int) []string {
				switch s := c.s.(type) {
				case Stream[int]:
					return checkStream(t, s, epoch)
				case Stream[[]int]:
					return checkStream(t, s, epoch)
				case Stream[string]:
					return checkStream(t, s, epoch)
				case Stream[Pair[int, int]]:
					return checkStream(t, s, epoch)
				case Stream[Pair[int, string]]:
					return checkStream(t, s, epoch)
				}
				panic(fmt.Sprintf("%T", c.s))
			}
			if got := fmt.Sprint(check(0)); c.want != "" {
				equal(t, "epoch 0", got, c.want)
			}
			check(3)
		})
	}
}

// TestRepeatEpochs: outer epoch e covers inner epochs from e×times on, or from e on without end.
func TestRepeatEpochs(t *testing.T) {
	equal(t, "3 times", collect(t, counting(2).Repeat(3).Epoch(t.Context(), 2)), "[600 601 700 701 800 801]")
	equal(t, "forever", collect(t, counting(2).Repeat(0).Take(5).Epoch(t.Context(), 2)), "[200 201 300 301 400]")
	equal(t, "mixed", collect(t, Mix(MixOptions{Stop: CycleUntilLast}, counting(1), counting(2)).Epoch(t.Context(), 2)), "[200 200 300 201 400]")
}

// TestStreamEpochs: every source is read in the epoch that is asked for.
func TestStreamEpochs(t *testing.T) {
	a, b := counting(2), counting(1)
	equal(t, "Chain", collect(t, Chain(a, b, a).Epoch(t.Context(), 2)), "[200 201 200 200 201]")
	equal(t, "Zip", collect(t, Zip(a, b).Epoch(t.Context(), 2)), "[{200 200}]")
	equal(t, "Shuffle", collect(t, b.Shuffle(3, 1).Epoch(t.Context(), 2)), "[200]")
	equal(t, "Unbatch", collect(t, Unbatch(Batch(a, 2, List[int])).Take(9).Shard(Shard{}).Epoch(t.Context(), 2)), "[200 201]")
}

// TestFromSeq: what comes with an error is not handed on, and a sequence that stops because its context has ended has not
// reached the end of its epoch.
func TestFromSeq(t *testing.T) {
	for value, err := range FromSeq(func(context.Context, int) iter.Seq2[int, error] { return one(7, errBad) }).Epoch(t.Context(), 0) {
		equal(t, "value and error", fmt.Sprint(value, err), "0 bad sample")
	}
	synctest.Test(t, func(t *testing.T) {
		source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				if yield(7, nil) {
					<-ctx.Done()
				}
			}
		})
		for _, s := range []Stream[int]{source, source.Prefetch(2), Map(source, 1, quick), source.Shuffle(1, 0), source.Repeat(2), Unbatch(Batch(source, 1, List[int]))} {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, io.ErrNoProgress)
			var at Cursor
			equal(t, "outcomes", outcomes(s.Run(ctx, &at)), "[7 error "+io.ErrNoProgress.Error()+"]")
			equal(t, "epoch and pos", []int{at.Epoch, at.Pos}, []int{0, 1})
			cancel()
		}
	})
}

// compose builds a stream out of bytes: each pair is a stage and its argument.
func compose(program []byte) Stream[int] {
	next := func() (b int) {
		if len(program) > 0 {
			b, program = int(program[0]), program[1:]
		}
		return b
	}
	source := func() Stream[int] {
		switch n := next(); n % 4 {
		case 0:
			return counting(n / 4 % 12)
		case 1:
			return counting(n/4%12, n/8%7, n/16%5)
		case 2:
			return Indices(Random(n/4%12, uint64(n)))
		default:
			l, err := New(numbers(n/4%12), List[int], Options{BatchSize: 1 + n%3, Shuffle: true, Workers: n % 3, Tail: UnevenTail})
			if err != nil {
				panic(err)
			}
			return Unbatch(l.Stream())
		}
	}
	s := source()
	for range 6 {
		if len(program) == 0 {
			break
		}
		stage, n := next(), next()
		switch stage % 12 {
		case 0:
			s = s.Filter(func(i int) bool { return i%(n%5+1) != 1 })
		case 1:
			s = s.Take(n % 20)
		case 2:
			s = s.Repeat(n%3 + 1)
		case 3:
			s = s.Shard(Shard{n % 3, 3})
		case 4:
			s = Chain(s, source())
		case 5:
			s = Map(Zip(s, source()), n%3, func(_ context.Context, p Pair[int, int]) (int, error) { return p.First + p.Second, nil })
		case 6:
			s = Unbatch(Batch(s, n%4+1, List[int]))
		case 7:
			s = Map(s, n%4, double)
		case 8:
			s = s.Prefetch(n%5 + 1)
		case 9:
			s = s.Shuffle(n%6+1, uint64(n))
		case 10:
			s = Mix(MixOptions{Stop: Stop(n % 2)}, s, source())
		case 11:
			s = Mix(MixOptions{Weights: []float64{1, float64(n%4) + .5}, Seed: uint64(n), Stop: Stop(n / 4 % 2)}, s, source())
		}
	}
	return s.Take(60)
}

// FuzzStreams puts compositions at random through the protocol.
func FuzzStreams(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 3))
	for range 60 {
		program := make([]byte, 3+random.IntN(14))
		for i := range program {
			program[i] = byte(random.IntN(256))
		}
		f.Add(program)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		checkStream(t, compose(program[:min(len(program), 20)]), 1)
	})
}

// TestPrefetchQueue: the six properties that the RFC asks of its queue, by name. (That it is between exactly two ends
// is how a range is made; between machines there are shards instead.)
func TestPrefetchQueue(t *testing.T) {
	const n = 20
	run := func(t *testing.T, length int, produce, consume func(i int)) (got []int, ahead int) {
		synctest.Test(t, func(t *testing.T) {
			var read atomic.Int64
			source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] {
				return func(yield func(int, error) bool) {
					for i := range n {
						produce(i)
						read.Add(1)
						if !yield(i, nil) {
							return
						}
					}
				}
			})
			for i, err := range source.Prefetch(length).Epoch(t.Context(), 0) {
				if err != nil {
					t.Fatal(err)
				}
				consume(i)
				synctest.Wait()
				got = append(got, i)
				ahead = max(ahead, int(read.Load())-len(got))
			}
		})
		return got, ahead
	}
	idle := func(int) {}
	pause := func(i int) { time.Sleep(time.Duration(mix(uint64(i)) % 1000)) }
	t.Run("guaranteed delivery, no duplicates, order", func(t *testing.T) {
		for length := range 5 {
			for _, c := range [][2]func(int){{idle, idle}, {pause, idle}, {idle, pause}, {pause, pause}} {
				got, _ := run(t, length+1, c[0], c[1])
				equal(t, "items", got, positions(Sequential(n), 0))
			}
		}
	})
	t.Run("customizable length", func(t *testing.T) {
		for _, length := range []int{1, 2, 7, 100} {
			_, ahead := run(t, length, idle, func(int) { time.Sleep(time.Second) })
			equal(t, "ahead", ahead, min(length, n-1))
		}
	})
	t.Run("non-blocking", func(t *testing.T) { // neither end waits while there is room, or an item
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			source := Map(Indices(Sequential(n)), 0, func(_ context.Context, i int) (int, error) {
				time.Sleep(time.Second)
				return i, nil
			})
			for range source.Prefetch(1).Epoch(t.Context(), 0) {
				time.Sleep(time.Second)
			}
			equal(t, "a second to make and a second to use", time.Since(start), (n+1)*time.Second)
		})
	})
	t.Run("between two ends", func(t *testing.T) { // a queue used twice is two queues
		queue := counting(3).Prefetch(2)
		var got []string
		for a := range queue.Epoch(t.Context(), 0) {
			for b := range queue.Epoch(t.Context(), 0) {
				got = append(got, fmt.Sprint(a, b))
			}
		}
		equal(t, "pairs", got, "[0 0 0 1 0 2 1 0 1 1 1 2 2 0 2 1 2 2]")
	})
}

// TestReadyIsHandedOver: an item leaves Map and Prefetch as soon as it is done, not with the source's next item.
func TestReadyIsHandedOver(t *testing.T) {
	for name, stage := range map[string]func(Stream[int]) Stream[int]{
		"Prefetch":      func(s Stream[int]) Stream[int] { return s.Prefetch(5) },
		"Map":           func(s Stream[int]) Stream[int] { return Map(s, 3, quick) },
		"Map, inline":   func(s Stream[int]) Stream[int] { return Map(s, 0, quick) },
		"Map, Prefetch": func(s Stream[int]) Stream[int] { return Map(s.Prefetch(2), 2, quick).Prefetch(3) },
	} {
		synctest.Test(t, func(t *testing.T) {
			source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] {
				return func(yield func(int, error) bool) {
					for i := range 10 {
						time.Sleep(time.Second)
						if !yield(i, nil) {
							return
						}
					}
				}
			})
			start := time.Now()
			var times []int
			for range stage(source).Epoch(t.Context(), 0) {
				times = append(times, int(time.Since(start)/time.Second))
			}
			equal(t, name, times, "[1 2 3 4 5 6 7 8 9 10]")
		})
	}
}

func quick(_ context.Context, i int) (int, error) { return i, nil }

// TestReadAhead: no stage reads further ahead of the loop than it says.
func TestReadAhead(t *testing.T) {
	for _, c := range []struct {
		name  string
		stage func(Stream[int]) Stream[int]
		want  []int // read with each of the first items in hand
	}{
		{"Map inline", func(s Stream[int]) Stream[int] { return Map(s, 0, quick) }, []int{1, 2, 3}},
		{"Map", func(s Stream[int]) Stream[int] { return Map(s, 1, quick) }, []int{9, 10, 11}},
		{"Map 3", func(s Stream[int]) Stream[int] { return Map(s, 3, quick) }, []int{25, 26, 27}},
		{"Prefetch", func(s Stream[int]) Stream[int] { return s.Prefetch(4) }, []int{5, 6, 7}},
		{"Take", func(s Stream[int]) Stream[int] { return s.Take(2) }, []int{1, 2}},
		{"Shard", func(s Stream[int]) Stream[int] { return s.Shard(Shard{1, 3}) }, []int{2, 5, 8}},
		{"Filter", func(s Stream[int]) Stream[int] { return s.Filter(func(i int) bool { return i%2 == 1 }) }, []int{2, 4, 6}},
		{"Repeat", func(s Stream[int]) Stream[int] { return s.Repeat(2) }, []int{1, 2, 3}},
		{"Chain", func(s Stream[int]) Stream[int] { return Chain(s, s) }, []int{1, 2, 3}},
		{"Mix", func(s Stream[int]) Stream[int] { return Mix(MixOptions{}, s, counting(9)) }, []int{1, 1, 2}},
		{"Batch", func(s Stream[int]) Stream[int] { return Unbatch(Batch(s, 2, List[int])) }, []int{2, 2, 4}},
		{"Shuffle", func(s Stream[int]) Stream[int] { return s.Shuffle(1, 0) }, []int{1, 2, 3}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var read, gone atomic.Int64
			source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] {
				return func(yield func(int, error) bool) {
					defer gone.Add(1)
					for i := range 100 {
						read.Add(1)
						if !yield(i, nil) {
							return
						}
					}
				}
			})
			s := c.stage(source)
			equal(t, c.name+": read before the range", read.Load(), 0)
			var got []int
			for _, err := range s.Epoch(t.Context(), 0) {
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if got = append(got, int(read.Load())); len(got) == len(c.want) {
					break
				}
			}
			equal(t, c.name, got, c.want)
			equal(t, c.name+": the source has been left", gone.Load(), 1)
		})
	}
}

// TestShuffleStream: every item once, another order in every epoch and seed, no more than a window of items in memory,
// and no more than a window read again.
func TestShuffleStream(t *testing.T) {
	const n, window = 100, 8
	read := 0
	source := FromSeq(func(_ context.Context, epoch int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				read++
				if !yield(i, nil) {
					return
				}
			}
		}
	})
	seen := map[string]bool{}
	firsts := map[int]bool{}
	for epoch := range 20 {
		var got []int
		read = 0
		for i := range source.Shuffle(window, 1).Epoch(t.Context(), epoch) {
			got = append(got, i)
			if read-len(got) >= window {
				t.Fatalf("%d items in memory", read-len(got)+1)
			}
			if len(got) == 1 {
				firsts[read] = true
			}
		}
		seen[fmt.Sprint(got)] = true
		slices.Sort(got)
		equal(t, "items", got, positions(Sequential(n), 0))
	}
	seen[fmt.Sprint(collect(t, source.Shuffle(window, 2).Epoch(t.Context(), 0)))] = true
	equal(t, "different orders", len(seen), 21)
	if len(firsts) < window/2 {
		t.Errorf("the first window has only the lengths %v", firsts)
	}
	patterns := map[string]bool{} // of windows in full
	order := collect(t, Indices(Sequential(n)).Shuffle(window, 1).Epoch(t.Context(), 0))
	first := slices.Max(order[:1]) // the first window has the items 0 to some number below window
	for len(order) > 0 && slices.Max(order[:first+1]) != first {
		first++
	}
	for order = order[first+1:]; len(order) >= window; order = order[window:] {
		low := slices.Min(order[:window])
		pattern := make([]int, window)
		for j := range pattern {
			pattern[j] = order[j] - low
		}
		patterns[fmt.Sprint(pattern)] = true
	}
	if len(patterns) < 5 {
		t.Errorf("the windows have only the orders %v", patterns)
	}

	var alive []weak.Pointer[[4096]byte] // what was handed over is not kept
	large := Map(Indices(Sequential(40)), 0, func(context.Context, int) (*[4096]byte, error) {
		p := new([4096]byte)
		alive = append(alive, weak.Make(p))
		return p, nil
	})
	given := 0
	for range large.Shuffle(window, 1).Epoch(t.Context(), 0) {
		runtime.GC()
		given++
		live := 0
		for _, p := range alive {
			if p.Value() != nil {
				live++
			}
		}
		if most := len(alive) - given + 1; live > most+1 {
			t.Fatalf("with item %d in hand %d are alive, want at most %d", given, live, most+1)
		}
	}

	base := Indices(Sequential(n)) // whose own resume costs nothing
	for item := range Map(base, 0, func(_ context.Context, i int) (int, error) { read++; return i, nil }).Shuffle(window, 1)(t.Context(), Cursor{}) {
		read = 0
		for range Map(base, 0, func(_ context.Context, i int) (int, error) { read++; return i, nil }).Shuffle(window, 1).Run(t.Context(), ptr(item.Next)) {
			break
		}
		if read > 2*window { // what is read again, and perhaps the window after it
			t.Fatalf("after a resume %d items are read", read)
		}
	}
}

// TestMixCounts: the closed forms of how many items come in turn, the shares by weight, and what each rule promises.
func TestMixCounts(t *testing.T) {
	count := func(opts MixOptions, epoch int, sizes ...int) (total int, each []int) {
		var srcs []Stream[int]
		for i, n := range sizes {
			srcs = append(srcs, Map(Indices(Sequential(n)), 0, func(context.Context, int) (int, error) { return i, nil }))
		}
		each = make([]int, len(sizes))
		for _, i := range collect(t, Mix(opts, srcs...).Epoch(t.Context(), epoch)) {
			each[i]++
			total++
		}
		return total, each
	}
	for _, sizes := range [][]int{{1}, {4}, {1, 2}, {3, 1}, {4, 4}, {1, 2, 3}, {3, 2, 1}, {4, 4, 4}, {2, 4, 1, 3}} {
		first, last, all := math.MaxInt, 0, 0
		for i, n := range sizes {
			first, last, all = min(first, n*len(sizes)+i), max(last, n*len(sizes)+i), all+n
		}
		for stop, want := range map[Stop]int{StopAtFirst: first, StopAtLast: all, CycleUntilLast: last} {
			got, _ := count(MixOptions{Stop: stop}, 0, sizes...)
			equal(t, fmt.Sprint(sizes, " stop ", stop), got, want)
		}
		for epoch := range 5 {
			weights := slices.Repeat([]float64{.5}, len(sizes))
			_, each := count(MixOptions{Weights: weights, Seed: 1, Stop: StopAtLast}, epoch, sizes...)
			equal(t, "by weight, all", each, sizes)
			_, each = count(MixOptions{Weights: weights, Seed: 1, Stop: StopAtFirst}, epoch, sizes...)
			full := 0
			for i, n := range sizes {
				if each[i] == n {
					full++
				}
				if each[i] > n {
					t.Errorf("%v gave %v", sizes, each)
				}
			}
			if full == 0 {
				t.Errorf("%v gave %v and stopped", sizes, each)
			}
			_, each = count(MixOptions{Weights: weights, Seed: 1, Stop: CycleUntilLast}, epoch, sizes...)
			for i, n := range sizes {
				if each[i] < n {
					t.Errorf("%v gave %v", sizes, each)
				}
			}
		}
	}
	_, each := count(MixOptions{Weights: []float64{1, 2, 5}, Seed: 3}, 0, 8000, 8000, 4000)
	if r := float64(each[1]) / float64(each[0]); math.Abs(r-2) > .2 {
		t.Errorf("weights 1, 2, 5 gave %v", each)
	}
	if r := float64(each[2]) / float64(each[0]); math.Abs(r-5) > .5 {
		t.Errorf("weights 1, 2, 5 gave %v", each)
	}
	orders := map[string]bool{}
	for epoch := range 3 {
		for seed := range uint64(3) {
			orders[fmt.Sprint(collect(t, Mix(MixOptions{Weights: []float64{1, 1}, Seed: seed}, Indices(Sequential(20)), Map(Indices(Sequential(20)), 0, quick)).Epoch(t.Context(), epoch)))] = true
		}
	}
	if len(orders) < 5 {
		t.Errorf("3 epochs of 3 seeds have %d orders", len(orders))
	}
	for _, opts := range []MixOptions{{Stop: CycleForever}, {Stop: CycleUntilLast}, {Stop: CycleForever, Weights: []float64{1, 1}}} {
		got := outcomes(Mix(opts, counting(3), counting(0)).Epoch(t.Context(), 2))
		equal(t, "an empty source", got[len(got)-1], "error dataloader: Mix: source 1 gave nothing in epoch 2")
	}
}

// TestStreamsThatDie: a panic in the source or in a function, and in a goroutine of a stage a Goexit, is an error and
// joins everything.
func TestStreamsThatDie(t *testing.T) {
	die := func(i int) func() {
		return func() {
			if i == 0 {
				panic("ouch")
			}
			runtime.Goexit()
		}
	}
	for i, what := range []string{"panic: ouch", "runtime.Goexit was called"} {
		source := FromSeq(func(_ context.Context, _ int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				if yield(7, nil) {
					die(i)()
				}
			}
		})
		f := func(_ context.Context, n int) (int, error) {
			if n == 1 {
				die(i)()
			}
			return n, nil
		}
		for workers := range 3 {
			synctest.Test(t, func(t *testing.T) {
				if i == 0 || workers > 0 {
					got := outcomes(Map(source, workers, quick).Epoch(t.Context(), 4))
					equal(t, "source", len(got), 2)
					if !strings.HasSuffix(got[1], what) || got[0] != "7" {
						t.Errorf("source: %s", got)
					}
					got = outcomes(Map(counting(3), workers, f).Epoch(t.Context(), 0))
					equal(t, "f", got, "[0 error dataloader: Map: epoch 0, the item before pos 2: "+what+" 2]")
				}
				got := outcomes(source.Prefetch(workers+1).Epoch(t.Context(), 0))
				if len(got) != 2 || !strings.HasSuffix(got[1], what) {
					t.Errorf("Prefetch: %s", got)
				}
			})
		}
	}
	dead := "panic: ouch"
	equal(t, "source", outcomes(FromSeq(func(context.Context, int) iter.Seq2[int, error] { panic("ouch") }).Epoch(t.Context(), 3)), "[error dataloader: epoch 3: the stream: "+dead+"]")
	equal(t, "Filter", outcomes(counting(3).Filter(func(i int) bool {
		if i == 1 {
			panic("ouch")
		}
		return true
	}).Epoch(t.Context(), 0)), "[0 error dataloader: Filter: epoch 0, the item before pos 2: "+dead+" 2]")
	equal(t, "Batch", outcomes(Batch(counting(3), 2, func(_ []int, samples []int) ([]int, error) {
		if len(samples) == 2 {
			panic("ouch")
		}
		return List(nil, samples)
	}).Epoch(t.Context(), 0)), "[error dataloader: Batch: epoch 0, the item before pos 2: "+dead+" [2]]")
	equal(t, "Indices", outcomes(Indices(OrderFunc(2, func(int) []int { panic("ouch") })).Epoch(t.Context(), 0)), "[error dataloader: Indices: epoch 0, the item before pos 0: "+dead+"]")
	mustPanic(t, func() { // nor is that of a source which is being left an item's
		for range FromSeq(func(context.Context, int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				defer panic("on closing")
				yield(1, nil)
			}
		}).Epoch(t.Context(), 0) {
			break
		}
	}, "on closing")
	for _, s := range []Stream[int]{counting(3), Map(counting(3), 2, quick), counting(3).Prefetch(2), counting(3).Shuffle(2, 1), Mix(MixOptions{}, counting(3))} {
		mustPanic(t, func() { // that of the loop body is its own
			for range s.Epoch(t.Context(), 0) {
				panic("of the body")
			}
		}, "of the body")
	}
}

// TestHealedStreams: items that fail in the first run and have healed by the resume change nothing else.
func TestHealedStreams(t *testing.T) {
	sick := true
	source := FromSeq(func(_ context.Context, epoch int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range 30 {
				var err error
				if sick && i%4 == 1 {
					err = errBad
				}
				if !yield(i, err) {
					return
				}
			}
		}
	})
	for name, s := range map[string]Stream[int]{
		"Take": source.Take(20), "Shuffle": source.Shuffle(5, 1), "Shard": source.Shard(Shard{1, 2}), "Repeat": source.Repeat(2), "Prefetch": source.Prefetch(3),
		"Mix": Mix(MixOptions{Weights: []float64{1, 2}, Stop: StopAtLast}, source, source), "Chain": Chain(source, source),
		"Unbatch": Unbatch(Batch(source, 1, List[int])), "Map": Map(source, 3, double),
		"Zip": Map(Zip(source, source.Shuffle(3, 3)), 0, func(_ context.Context, p Pair[int, int]) (int, error) { return 100*p.First + p.Second, nil }),
	} {
		synctest.Test(t, func(t *testing.T) {
			sick = false
			want := outcomes(s.Epoch(t.Context(), 0))
			sick = true
			var cursors []Cursor
			var first []string
			for item, err := range s(t.Context(), Cursor{}) {
				first = append(first, outcomes(one(item.Value, err))...)
				cursors = append(cursors, throughJSON(t, item.Next))
			}
			equal(t, name+": items", len(first), len(want))
			sick = false
			for k, at := range cursors {
				equal(t, fmt.Sprintf("%s: after %d", name, k+1), outcomes(s.Run(t.Context(), &at)), want[k+1:])
			}
		})
	}
}

// TestStreamRanks: after a stop in lock-step another number of ranks goes on, without loss or repeat.
func TestStreamRanks(t *testing.T) {
	const n, global = 50, 12
	part := func(rank, ranks int) Stream[[]int] {
		source := counting(n).Shuffle(5, 1) // before Shard
		return Batch(Map(source.Shard(Shard{rank, ranks}), 0, quick), global/ranks, List[int]).Prefetch(2)
	}
	all := collect(t, counting(n).Shuffle(5, 1).Epoch(t.Context(), 0))
	for _, before := range []int{1, 2, 3, 4, 6} {
		for _, after := range []int{1, 2, 3, 4, 12} {
			for stop := range n / global {
				var at Cursor
				var got []int
				for rank := range before {
					at = Cursor{}
					k := 0
					for batch := range part(rank, before).Run(t.Context(), &at) {
						got = append(got, batch...)
						if k++; k > stop {
							break
						}
					}
				}
				for rank := range after {
					got = append(got, slices.Concat(collect(t, part(rank, after).Run(t.Context(), ptr(throughJSON(t, at))))...)...)
				}
				slices.Sort(got)
				want := slices.Clone(all)
				slices.Sort(want)
				equal(t, fmt.Sprintf("%d ranks, after %d steps %d ranks", before, stop+1, after), got, want)
			}
		}
	}
}

// TestPipelineIsLoader: Batch of Map of Indices gives the batches of the classic loader, and its first one sooner.
func TestPipelineIsLoader(t *testing.T) {
	for n := range 12 {
		sampler := Random(n, 5)
		pipeline := Batch(Map(Indices(sampler), 3, failing(n, 4).Get), 3, List[int])
		loader := newLoader(t, failing(n, 4), Options{Sampler: sampler, BatchSize: 3, Workers: 2})
		for epoch := range 3 {
			a, b := outcomes(pipeline.Epoch(t.Context(), epoch)), outcomes(loader.Epoch(t.Context(), epoch))
			equal(t, "batches", len(a), len(b))
			for k := range a {
				if strings.HasPrefix(a[k], "error") != strings.HasPrefix(b[k], "error") || a[k][0] == '[' && a[k] != b[k] {
					t.Errorf("batch %d: %s, the loader has %s", k, a[k], b[k])
				}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		slow := func(_ context.Context, i int) (int, error) { time.Sleep(time.Second); return i, nil }
		start := time.Now()
		for range Batch(Map(Indices(Sequential(64)), 8, slow), 16, List[int]).Epoch(t.Context(), 0) {
			equal(t, "pipeline's first batch", time.Since(start), 2*time.Second)
			break
		}
		start = time.Now()
		for range newLoader(t, Func(64, slow), Options{BatchSize: 16, Workers: 8}).Epoch(t.Context(), 0) {
			equal(t, "loader's first batch", time.Since(start), 16*time.Second)
			break
		}
	})
}

// TestEndOfEpoch: a cursor taken after the last item gives an empty rest and then the next epoch, in which the
// cursors are live again; two epochs, a resume and two more are four epochs.
func TestEndOfEpoch(t *testing.T) {
	loader := newLoader(t, numbers(7), Options{BatchSize: 2, Shuffle: true, Workers: 2})
	for name, s := range map[string]Stream[[]int]{
		"loader":   loader.Stream(),
		"pipeline": Batch(Map(Indices(Random(7, 0)), 2, quick).Shuffle(3, 1), 2, List[int]).Prefetch(2),
		"mix":      Mix(MixOptions{Stop: StopAtLast}, loader.Stream(), Batch(counting(3), 2, List[int])),
	} {
		epochs := func(at *Cursor, until int) (all []string) {
			for at.Epoch < until {
				all = append(all, outcomes(s.Run(t.Context(), at))...)
			}
			return all
		}
		var at Cursor
		want := epochs(&at, 4)
		at = Cursor{}
		got := epochs(&at, 2)
		at = throughJSON(t, at)
		equal(t, name+": 2 and 2 epochs", append(got, epochs(&at, 4)...), want)

		var last Cursor
		n := 0
		for item := range s(t.Context(), Cursor{Epoch: 1}) {
			last = item.Next
			n++
		}
		at = throughJSON(t, last)
		equal(t, name+": after the last", outcomes(s.Run(t.Context(), &at)), "[]")
		equal(t, name+": then", at, Cursor{Epoch: 2})
		for k := range n {
			back := at
			for range s.Run(t.Context(), &back) {
				break
			}
			if back.Epoch != 2 && k < n-1 || back.Epoch == at.Epoch && back.Pos <= at.Pos {
				t.Fatalf("%s: item %d of epoch 2: the cursor stays at %v", name, k, back)
			}
			at = throughJSON(t, back)
		}
	}
	each := collect(t, Mix(MixOptions{Stop: StopAtLast}, Batch(counting(1), 1, List[int]), Batch(counting(2), 2, List[int]), Batch(counting(3), 3, List[int])).Epoch(t.Context(), 0))
	equal(t, "a batch from each source", each, "[[0] [0 1] [0 1 2]]")
}

// TestFailedValues: what comes with an error is the zero value, whatever was returned with it or came before.
func TestFailedValues(t *testing.T) {
	for workers := range 3 {
		f := func(_ context.Context, i int) (int, error) {
			if i == 2 {
				return 7, errBad
			}
			return i + 10, nil
		}
		var got []int
		for value := range Map(counting(5, 1, 3), workers, f).Epoch(t.Context(), 0) {
			got = append(got, value)
		}
		equal(t, "Map", got, "[10 0 0 0 14]")
		for batch := range Batch(Map(counting(2, 1), workers, f), 2, List[int]).Epoch(t.Context(), 0) {
			equal(t, "Batch", batch, "[]")
		}
		collate := func([]int, []int) ([]int, error) { return []int{7}, errBad }
		for batch := range must(New(numbers(2), collate, Options{Workers: workers})).Epoch(t.Context(), 0) {
			equal(t, "loader", batch, "[]")
		}
		for batch := range Batch(counting(2), 2, collate).Epoch(t.Context(), 0) {
			equal(t, "Batch's collate", batch, "[]")
		}
	}
}

// TestBatchEndsWithCause: an ended context is not hidden by an item that failed before it in the same batch.
func TestBatchEndsWithCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := Map(counting(5), 0, func(_ context.Context, i int) (int, error) {
		if i == 4 {
			cancel(io.ErrNoProgress)
		}
		return i, errBad
	})
	got := outcomes(Batch(s, 3, List[int]).Epoch(ctx, 0))
	equal(t, "outcomes", got[len(got)-1], "error "+io.ErrNoProgress.Error())
	equal(t, "pairs", len(got), 2)
}

// TestResumeCallsNothingTwice: f is not called for the items before the cursor.
func TestResumeCallsNothingTwice(t *testing.T) {
	for workers := range 3 {
		var calls [40]atomic.Int64
		s := Batch(Map(Indices(Random(40, 1)).Prefetch(3), workers, func(_ context.Context, i int) (int, error) {
			calls[i].Add(1)
			return i, nil
		}), 4, List[int])
		var at Cursor
		done := map[int]bool{}
		for batch := range s.Run(t.Context(), &at) {
			for _, i := range batch {
				done[i] = true
			}
			if len(done) == 20 {
				break
			}
		}
		for i := range calls {
			calls[i].Store(0)
		}
		collect(t, s.Run(t.Context(), &at))
		for i := range calls {
			want := 1
			if done[i] {
				want = 0
			}
			equal(t, fmt.Sprint("calls for ", i), calls[i].Load(), want)
		}
	}
}

// TestRandInStreams: by the place of the item and the seed of the context, for any number of workers.
func TestRandInStreams(t *testing.T) {
	s := func(workers int) Stream[uint64] {
		return Map(counting(20), workers, func(ctx context.Context, _ int) (uint64, error) { return Rand(ctx).Uint64(), nil })
	}
	want := collect(t, s(0).Epoch(t.Context(), 1))
	equal(t, "workers", collect(t, s(3).Epoch(t.Context(), 1)), want)
	seen := map[uint64]bool{}
	for _, ctx := range []context.Context{t.Context(), WithSeed(t.Context(), 1)} {
		for epoch := range 3 {
			for _, v := range collect(t, s(2).Epoch(ctx, epoch)) {
				seen[v] = true
			}
		}
	}
	equal(t, "different numbers", len(seen), 2*3*20)
	var ranks []uint64 // not the same numbers on each rank
	for rank := range 2 {
		ranks = append(ranks, collect(t, Map(counting(20).Shard(Shard{rank, 2}), 0, func(ctx context.Context, _ int) (uint64, error) { return Rand(ctx).Uint64(), nil }).Epoch(t.Context(), 1))...)
	}
	slices.Sort(ranks)
	slices.Sort(want)
	equal(t, "ranks", ranks, want)
}

// TestBadStreams: arguments that make no sense are the stream's only pair, wherever it stands in a pipeline.
func TestBadStreams(t *testing.T) {
	s := counting(3)
	check := func(seq iter.Seq2[int, error], parts ...string) {
		t.Helper()
		n := 0
		for _, err := range seq {
			saysAll(t, err, append(parts, "dataloader: ")...)
			n++
		}
		equal(t, "pairs", n, 1)
	}
	for _, c := range []struct {
		s     Stream[int]
		parts []string
	}{
		{s.Filter(nil), []string{"Filter", "nil"}},
		{s.Take(-1), []string{"Take", "n is -1"}},
		{s.Shard(Shard{2, 2}), []string{"Stream.Shard", "Index: 2", "0 to 1"}},
		{s.Shuffle(0, 1), []string{"Shuffle", "window is 0", "at least 1"}},
		{s.Prefetch(0), []string{"Prefetch", "n is 0", "at least 1"}},
		{FromSeq[int](nil), []string{"FromSeq", "nil"}},
		{Indices(nil), []string{"Indices", "nil"}},
		{Map(s, -1, quick), []string{"Map", "workers is -1"}},
		{Map[int, int](s, 1, nil), []string{"Map", "f is nil"}},
		{Unbatch(Batch(s, 0, List[int])), []string{"Batch", "size is 0", "positive"}},
		{Unbatch(Batch[int, []int](s, 1, nil)), []string{"Batch", "nil"}},
		{Mix[int](MixOptions{}), []string{"Mix", "no source"}},
		{Mix(MixOptions{Weights: []float64{1}}, s, s), []string{"Mix", "1 weights for 2 sources"}},
		{Mix(MixOptions{Weights: []float64{1, 0}}, s, s), []string{"Mix", "Weights[1] is 0", "positive and finite"}},
		{Mix(MixOptions{Weights: []float64{math.NaN()}}, s), []string{"Mix", "Weights[0] is NaN"}},
		{Mix(MixOptions{Weights: []float64{math.Inf(1)}}, s), []string{"Mix", "Weights[0] is +Inf"}},
		{Mix(MixOptions{Stop: 9}, s), []string{"Mix", "Stop is 9"}},
		{counting(0).Repeat(0), []string{"Repeat", "nothing in epoch 0"}},
		{Stream[int](nil).Filter(func(int) bool { return true }), []string{"Filter: stream 0 is nil"}},
		{Stream[int](nil).Take(1), []string{"Take: stream 0 is nil"}},
		{Stream[int](nil).Repeat(2), []string{"Repeat: stream 0 is nil"}},
		{Stream[int](nil).Shard(Shard{}), []string{"Stream.Shard: stream 0 is nil"}},
		{Stream[int](nil).Shuffle(2, 1), []string{"Shuffle: stream 0 is nil"}},
		{Stream[int](nil).Prefetch(2), []string{"Prefetch: stream 0 is nil"}},
		{Chain(s, nil), []string{"Chain: stream 1 is nil"}},
		{Mix(MixOptions{}, s, nil), []string{"Mix: stream 1 is nil"}},
		{Map(nil, 1, quick), []string{"Map: stream 0 is nil"}},
		{Unbatch[int](nil), []string{"Unbatch: stream 0 is nil"}},
		{Unbatch(Batch(nil, 1, List[int])), []string{"Batch: stream 0 is nil"}},
		{Map(Zip[int, int](s, nil), 0, func(_ context.Context, p Pair[int, int]) (int, error) { return 0, nil }), []string{"Zip, second: stream 0 is nil"}},
	} {
		check(c.s.Epoch(t.Context(), 0), c.parts...)
		pairs := Zip(counting(2), c.s)
		check(Map(pairs, 0, func(_ context.Context, p Pair[int, int]) (int, error) { return p.First, nil }).Epoch(t.Context(), 0), c.parts...)
		deep := Map(Chain(Mix(MixOptions{Stop: StopAtLast}, c.s).Prefetch(2), counting(2)).Repeat(2).Shuffle(2, 0), 2, quick)
		check(deep.Epoch(t.Context(), 0), c.parts...)
	}
}

// TestForeignCursors: a cursor of another pipeline is refused and both are named, also deep inside.
func TestForeignCursors(t *testing.T) {
	after := func(s Stream[int]) Cursor {
		for item := range s(t.Context(), Cursor{}) {
			return item.Next
		}
		panic("empty")
	}
	s := counting(9)
	for _, c := range []struct {
		made, used Stream[int]
		parts      []string
	}{
		{s.Take(3), s.Take(4), []string{"Take(3)", "Take(4)"}},
		{s.Repeat(2), s.Take(4), []string{"Repeat(2)", "Take(4)"}},
		{s.Shuffle(3, 1), s.Shuffle(3, 2), []string{"Shuffle(3, seed 1)", "Shuffle(3, seed 2)"}},
		{Chain(s, s), Chain(s, s, s), []string{"Chain(2)", "Chain(3)"}},
		{Mix(MixOptions{Weights: []float64{1, 2}, Seed: 3}, s, s), Mix(MixOptions{Weights: []float64{2, 1}, Seed: 3}, s, s), []string{"Mix(seed 3, weights [1 2]", "Mix(seed 3, weights [2 1]"}},
		{Mix(MixOptions{}, s, s), Mix(MixOptions{}, s), []string{"Mix(2 in turn", "Mix(1 in turn"}},
		{Indices(Random(9, 1)), Indices(Random(8, 1)), []string{"Random(9, seed 1)", "Random(8, seed 1)"}},
		{Indices(Random(9, 1)), s, []string{"Random(9, seed 1)", "FromSeq"}},
		{Indices(Random(9, 1)).Take(5).Repeat(2), s.Take(5).Repeat(2), []string{"Random(9, seed 1)", "FromSeq"}},
		{counting(9).Filter(func(i int) bool { return i > 5 }), counting(3), []string{"pos 7", "only 3 items"}},
	} {
		for _, at := range []Cursor{after(c.made), throughJSON(t, after(c.made))} {
			n := 0
			for _, err := range Map(Batch(c.used, 2, List[int]).Prefetch(2), 1, func(_ context.Context, b []int) ([]int, error) { return b, nil }).Run(t.Context(), &at) {
				saysAll(t, err, c.parts...)
				n++
			}
			equal(t, fmt.Sprint(c.parts, ": pairs"), n, 1)
		}
	}
	for _, err := range s.Take(3).Run(t.Context(), &Cursor{Pos: -1}) {
		saysAll(t, err, "must not be negative")
	}
	for _, err := range s.Take(3).Run(t.Context(), &Cursor{Pos: 1, State: stage{By: "Take(3)", N: -1}}) {
		saysAll(t, err, "damaged")
	}
}

// Examples: the documentation, compiled and run. They are in package dataloader like all of this file, so the names
// come without the package's.

// The tests of tar shards.

// tarEntries writes an archive of entries "name=content"; "name>target" is a hard link, "name@target" a symbolic one,
// and a name that ends in a slash a folder.
func tarEntries(entries ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := tar.Header{Typeflag: tar.TypeReg, Mode: 0o444}
		i := strings.IndexAny(e, "=>@")
		content := ""
		switch {
		case i < 0:
			h.Name = e
			h.Typeflag = tar.TypeDir
		case e[i] == '=':
			h.Name, content = e[:i], e[i+1:]
		case e[i] == '>':
			h.Name, h.Linkname, h.Typeflag = e[:i], e[i+1:], tar.TypeLink
		case e[i] == '@':
			h.Name, h.Linkname, h.Typeflag = e[:i], e[i+1:], tar.TypeSymlink
		}
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			panic(err)
		}
		must(io.WriteString(w, content))
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// gzipped packs data.
func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must(w.Write(data))
	w.Close()
	return b.Bytes()
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

// briefly is a stream of records in brief.
func briefly(s Stream[Record]) Stream[string] {
	return Map(s, 0, func(_ context.Context, r Record) (string, error) { return brief(r), nil })
}

// tarOutcomes reads shards in memory, named 0, 1, …
func tarOutcomes(t testing.TB, opts TarOptions, shards ...[]byte) []string {
	t.Helper()
	all, names := map[string][]byte{}, []string{}
	for i, data := range shards {
		names = append(names, strconv.Itoa(i))
		all[names[i]] = data
	}
	opts.Open = inMemory(all)
	return outcomes(briefly(must(Tar(names, opts))).Epoch(t.Context(), 0))
}

// onDisk writes a shard into a folder of the test's.
func onDisk(t testing.TB, name string, data []byte) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return name
}

// indexed reads all records of a data set in brief, or the error of OpenTar.
func indexed(t testing.TB, paths ...string) []string {
	t.Helper()
	d, err := OpenTar(paths...)
	if err != nil {
		return []string{"error " + err.Error()}
	}
	defer d.Close()
	return outcomes(briefly(Map(Indices(Sequential(d.Len())), 0, d.Get)).Epoch(t.Context(), 0))
}

func TestTarGrouping(t *testing.T) {
	for _, c := range []struct {
		entries []string
		want    string
	}{
		{[]string{"a.txt=1", "a.cls=2", "b.txt=3", "b.cls=4"}, "a{txt:1 cls:2} b{txt:3 cls:4}"},
		{[]string{"a.txt=1", "b.txt=2", "a.cls=3", "b.cls=4"}, "a{txt:1} b{txt:2} a{cls:3} b{cls:4}"},
		{[]string{"d/", "d/a.txt=1", "e/", "d/a.cls=2"}, "d/a{txt:1 cls:2}"},
		{[]string{"a.txt=1", "b.txt@a.txt", "a.cls=2"}, "a{txt:1 cls:2}"},
		{[]string{"a.txt=1", "README=2", "a.cls=3"}, "a{txt:1 cls:3}"},
		{[]string{"README=1", "d/LICENSE=2", "a.x/noext=3"}, ""},
		{[]string{"a.TXT=1"}, "a{txt:1}"},
		{[]string{"A.txt=1", "a.cls=2"}, "A{txt:1} a{cls:2}"},
		{[]string{"a.Seg.PNG=1"}, "a{seg.png:1}"},
		{[]string{"a/b.c.d=1"}, "a/b{c.d:1}"},
		{[]string{"a.x/b.txt=1"}, "a.x/b{txt:1}"},
		{[]string{"./a.txt=1"}, "./a{txt:1}"},
		{[]string{"a.=1"}, "a{:1}"},
		{[]string{"a..b=1"}, "a{.b:1}"},
		{[]string{"/some/22.0/1.1.png=1"}, "/some/22.0/1{1.png:1}"},
		{[]string{`a\b.txt=1`}, `a\b{txt:1}`},
		{[]string{".hidden=1", "./.hidden=1", "d/.hidden=1", "a.b/.hidden=1", "..a=1", "d/._a.txt=1", ".a.txt=1", "d/.b.txt=1"}, ""},
		{[]string{"__meta__=1", "__a.b__=1", "__m__/x.json=1"}, ""},
		{[]string{"__meta__.json=1", "d/__m__/x.json=2", "__/x.txt=3"}, "__meta__{json:1} d/__m__/x{json:2} __/x{txt:3}"},
		{[]string{"x.__key__=1", "x.__bad__=2"}, "x{__key__:1 __bad__:2}"},
		{[]string{"a.txt=", "a.cls="}, "a{txt: cls:}"},
		{[]string{"a.txt.gz=1"}, "a{txt.gz:1}"},
		{[]string{"../../etc/x.txt=1", "/abs/y.txt=2"}, "../../etc/x{txt:1} /abs/y{txt:2}"},
		{[]string{strings.Repeat("long/", 40) + "a.txt=1"}, strings.Repeat("long/", 40) + "a{txt:1}"},
		{[]string{strings.Repeat("long/", 60) + "ü.txt=1"}, strings.Repeat("long/", 60) + "ü{txt:1}"},
		{nil, ""},
	} {
		data := tarEntries(c.entries...)
		equal(t, fmt.Sprint(c.entries), strings.Join(tarOutcomes(t, TarOptions{}, data), " "), c.want)
		equal(t, fmt.Sprint("indexed ", c.entries), strings.Join(indexed(t, onDisk(t, "x.tar", data)), " "), c.want)
	}
	// Records do not span shards; a shard may come twice.
	one, two := tarEntries("a.txt=1"), tarEntries("a.cls=2")
	equal(t, "two shards", tarOutcomes(t, TarOptions{}, one, two, one), []string{"a{txt:1}", "a{cls:2}", "a{txt:1}"})
	// An empty file is a field, a missing one is not.
	for r := range must(Tar([]string{"x"}, TarOptions{Open: inMemory(map[string][]byte{"x": tarEntries("a.txt=")})})).Epoch(t.Context(), 0) {
		if r.Get("txt") == nil || r.Get("cls") != nil || r.Shard != "x" {
			t.Errorf("txt %v, cls %v, shard %q", r.Get("txt"), r.Get("cls"), r.Shard)
		}
	}
}

func TestTarFields(t *testing.T) {
	data := tarEntries("a.png=1", "a.cls=2", "b.png=3", "c.cls=4", "c.big="+strings.Repeat("x", 100))
	equal(t, "png", tarOutcomes(t, TarOptions{Fields: []string{"png"}}, data), []string{"a{png:1}", "b{png:3}", "c{}"})
	equal(t, "not read", tarOutcomes(t, TarOptions{Fields: []string{"CLS", "png"}, MaxFile: 10}, data), []string{"a{png:1 cls:2}", "b{png:3}", "c{cls:4}"})
	equal(t, "none", tarOutcomes(t, TarOptions{Fields: []string{}}, data), []string{"a{}", "b{}", "c{}"})

	// What is not wanted is not even read, if the file can seek.
	large := tarEntries("a.big="+strings.Repeat("x", 5<<20), "a.cls=1", "b.big="+strings.Repeat("x", 5<<20), "b.cls=2")
	file := &countingFile{Reader: bytes.NewReader(large)}
	opts := TarOptions{Fields: []string{"cls"}, Open: func(context.Context, string, int64) (io.ReadCloser, error) { return file, nil }}
	equal(t, "seeking", outcomes(briefly(must(Tar([]string{"x"}, opts))).Epoch(t.Context(), 0)), []string{"a{cls:1}", "b{cls:2}"})
	if file.read > 4*tarBuffer || !file.closed {
		t.Errorf("%d bytes of %d were read; closed %t", file.read, len(large), file.closed)
	}
}

// A countingFile counts the bytes that are read.
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

// TestTarFaults has every fault of a shard, with a sound shard after it: the records before the fault come, then one
// error, then the next shard. Peers lose most of these in silence.
func TestTarFaults(t *testing.T) {
	sound := tarEntries("a.txt=first", "a.cls=1", "b.txt="+strings.Repeat("second", 200), "b.cls=2", "c.txt=third", "c.cls=3")
	// a.txt is at 0, a.cls at 1024, b.txt at 2048, b.cls at 4096, c.txt at 5120, c.cls at 6144, the end at 7168
	a, b, c := "a{txt:first cls:1}", brief(Record{Key: "b", Files: []File{{"txt", []byte(strings.Repeat("second", 200))}, {"cls", []byte("2")}}}), "c{txt:third cls:3}"
	with := func(at int, bytes string) []byte {
		data := slices.Clone(sound)
		copy(data[at:], bytes)
		return data
	}
	resum := func(data []byte, at int) []byte {
		header := data[at : at+512]
		copy(header[148:], "        ")
		sum := 0
		for _, c := range header {
			sum += int(c)
		}
		copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
		return data
	}
	packed := gzipped(sound)
	flipped := slices.Clone(packed)
	flipped[len(flipped)-6] ^= 1 // the checksum
	halves := append(gzipped(sound[:3000]), gzipped(sound[3000:])...)
	type fault struct {
		name string
		data []byte
		want []string // records
		says []string // of the error
	}
	for _, f := range []fault{
		{"sound", sound, []string{a, b, c}, nil},
		{"half an end marker", sound[:7168+512], []string{a, b, c}, nil},
		{"gzip", packed, []string{a, b, c}, nil},
		{"two gzip members", halves, []string{a, b, c}, nil},
		{"no end marker", sound[:7168], []string{a, b}, []string{"end marker", `entry "c.cls"`, "offset 7168", `record "c", which may lack files, is left out`}},
		{"cut between records", sound[:5120], []string{a}, []string{"end marker", `entry "b.cls"`, "offset 5120", `record "b", which may lack files`}},
		{"cut between files", sound[:4096], []string{a}, []string{"end marker", `entry "b.txt"`, `record "b"`}},
		{"cut in data", sound[:3000], []string{a}, []string{"unexpected EOF", `entry "b.txt"`, "offset 2048", `record "b"`}},
		{"cut in padding", sound[:7000], []string{a, b}, []string{"unexpected EOF", `entry "c.cls"`, `record "c"`}},
		{"cut in a header", sound[:5120+100], []string{a}, []string{"it has been cut", `entry "b.cls"`, "offset 5120", `record "b"`}},
		{"cut after the first header", sound[:512], nil, []string{"unexpected EOF", `entry "a.txt"`, `record "a"`}},
		{"cut in an end marker", sound[:7168+700], []string{a, b}, []string{"unexpected EOF", `record "c"`}},
		{"bad checksum", with(5120+10, "x"), []string{a}, []string{"the headers that come next: archive/tar: invalid tar header", `entry "b.cls"`, "offset 5120", `record "b"`}},
		{"bad number", resum(with(5120+108, "zzzz"), 5120), []string{a}, []string{"invalid tar header", "offset 5120"}},
		{"a block of zeros inside", with(5120, strings.Repeat("\x00", 512)), []string{a}, []string{"invalid tar header", "offset 5120"}},
		{"two archives", append(slices.Clone(sound), sound...), []string{a, b, c}, []string{"after the end marker"}},
		{"4 EiB", resum(with(5120+124, "\x80\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00"), 5120), []string{a, b}, []string{`entry "c.txt"`, "4611686018427387904 bytes make the record larger than MaxFile, 1073741824"}},
		{"2^63-1 bytes", resum(with(5120+124, "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"), 5120), []string{a, b}, []string{`entry "c.txt"`, "9223372036854775807 bytes"}},
		{"negative size", resum(with(5120+124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), 5120), []string{a}, []string{"invalid tar header"}},
		{"a bad record, and a cut", tarEntries("a.txt=first", "a.cls=1", "b.txt=", "b.txt=")[:3072], []string{"a{txt:first cls:1}"}, []string{`has another field "txt"`, "has been cut", `record "b"`}},
		{"no bytes", nil, nil, []string{"the archive is empty", `shard "0"`}},
		{"no bytes in gzip", gzipped(nil), nil, []string{"the archive is empty"}},
		{"a page", []byte("<!DOCTYPE html>" + strings.Repeat("<p>Not found</p>", 100)), nil, []string{"invalid tar header"}},
		{"a short page", []byte("<!DOCTYPE html>"), nil, []string{"it has been cut"}},
		{"gzip cut", packed[:len(packed)/2], nil, []string{"unexpected EOF", `record "a"`}},
		{"gzip cut at its end", packed[:len(packed)-4], []string{a, b, c}, []string{"unexpected EOF"}},
		{"gzip flipped", flipped, []string{a, b, c}, []string{"gzip: invalid checksum"}},
		{"gzip and more", append(slices.Clone(packed), "and something more"...), []string{a, b, c}, []string{"gzip: invalid header"}},
		{"two packed archives", append(slices.Clone(packed), packed...), []string{a, b, c}, []string{"after the end marker"}},
		{"no gzip", []byte("\x1f\x8b"), nil, []string{"EOF"}},
		{"xz", []byte("\xfd7zXZ\x00\x00\x04"), nil, []string{"xz"}},
		{"zstd", []byte("\x28\xb5\x2f\xfd\x04"), nil, []string{"zstd"}},
	} {
		t.Run(f.name, func(t *testing.T) {
			next := tarEntries("c.cls=4", "d.cls=5")
			got := tarOutcomes(t, TarOptions{}, f.data, next)
			want := append(slices.Clone(f.want), "c{cls:4}", "d{cls:5}")
			if f.says != nil {
				if len(got) != len(want)+1 {
					t.Fatalf("got %q", got)
				}
				saysAll(t, errors.New(got[len(f.want)]), f.says...)
				got = slices.Delete(got, len(f.want), len(f.want)+1)
			}
			equal(t, "records", got, want)
			opts := TarOptions{Open: inMemory(map[string][]byte{"0": f.data, "1": next})}
			stream := must(Tar([]string{"0", "1"}, opts))
			checkStream(t, briefly(stream), 0)
			for _, err := range stream.Epoch(t.Context(), 0) {
				if e := (*TarError)(nil); err != nil && (!errors.As(err, &e) || e.Shard != "0") {
					t.Errorf("no TarError: %v", err)
				}
			}
			if plain := f.data == nil || !strings.HasPrefix(string(f.data), "\x1f"); plain {
				if got := indexed(t, onDisk(t, "x.tar", f.data)); f.says == nil {
					equal(t, "indexed", got, f.want)
				} else if e := got[len(got)-1]; !strings.HasPrefix(e, "error") {
					t.Errorf("OpenTar gives %q", got)
				}
			}
		})
	}
}

// TestTarBadRecords has faults of one record, after which the shard is read on.
func TestTarBadRecords(t *testing.T) {
	for _, c := range []struct {
		entries       []string
		says, indexed string
	}{
		{[]string{"b.txt=1", "b.cls=2", "b.TXT=3", "b.png=4"}, `entry "b.TXT", offset 4096: record "b" has another field "txt"`, "error"},
		{[]string{"b.txt=1", "b.cls>a.txt", "b.png=4"}, `entry "b.cls", offset 3072: it is a hard link to "a.txt"`, "b{txt:1 cls:first png:4}"},
		{[]string{"b.txt>a.txt", "b.cls>b.txt"}, `it is a hard link to "a.txt"`, "b{txt:first cls:first}"},
		{[]string{"b.txt=1", "b.cls>c.txt", "b.png=4"}, `it is a hard link to "c.txt"`, "error"},
		{[]string{"b.txt=" + strings.Repeat("x", 6), "b.cls=" + strings.Repeat("y", 5), "b.png="}, "its 5 bytes make the record larger than MaxFile, 10", "b{txt:xxxxxx cls:yyyyy png:}"},
		{[]string{"b.txt=" + strings.Repeat("x", 11)}, "its 11 bytes make the record larger than MaxFile, 10", "b{txt:xxxxxxxxxxx}"},
	} {
		data := tarEntries(slices.Concat([]string{"a.txt=first", "a.cls=1"}, c.entries, []string{"c.txt=third"})...)
		got := tarOutcomes(t, TarOptions{MaxFile: 10}, data)
		if len(got) != 3 {
			t.Fatalf("%q: %q", c.entries, got)
		}
		saysAll(t, errors.New(got[1]), c.says)
		equal(t, "the others", []string{got[0], got[2]}, []string{"a{txt:first cls:1}", "c{txt:third}"})
		got = indexed(t, onDisk(t, "x.tar", data))
		if len(got) != 3 || !strings.HasPrefix(got[1], c.indexed) {
			t.Errorf("indexed %q: %q", c.entries, got)
		}
		checkStream(t, briefly(must(Tar([]string{"x"}, TarOptions{MaxFile: 10, Open: inMemory(map[string][]byte{"x": data})}))), 1)
	}
}

// An entry is one of an archive, as archive/tar and this package's reader see it.
type archiveEntry struct {
	name    string
	kind    byte
	content string
}

// archiveTar reads an archive with archive/tar. cut says that it was content although there is no end marker.
func archiveTar(data []byte, maxFile int64) (all []archiveEntry, err error) {
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		e := archiveEntry{name: h.Name}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
			e.kind = tar.TypeReg
			if h.Size <= maxFile {
				content := make([]byte, h.Size)
				if _, err := io.ReadFull(r, content); err != nil {
					return all, err
				}
				e.content = string(content)
				if _, err := io.Copy(io.Discard, r); err != nil { // there is more than the file should have
					return append(all, e), err
				}
			} else if h.PAXRecords["GNU.sparse.realsize"] != "" || h.PAXRecords["GNU.sparse.size"] != "" || h.Typeflag == tar.TypeGNUSparse {
				return all, errors.New("too large to be read over")
			}
		case tar.TypeLink:
			e.kind, e.content = tar.TypeLink, h.Linkname
		}
		all = append(all, e)
	}
}

// thisReader reads an archive entry by entry with the reader of Tar and OpenTar.
func thisReader(data []byte, maxFile int64) (all []archiveEntry, err error) {
	s := &tarShard{ctx: context.Background(), in: bufio.NewReaderSize(bytes.NewReader(data), 1<<10), max: maxFile}
	for {
		err := s.advance()
		if err == io.EOF {
			err = s.finish()
		}
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		e := archiveEntry{name: s.at.name, kind: s.at.kind}
		if e.kind == tar.TypeLink {
			e.content = s.at.link
		} else if e.kind == tar.TypeReg && s.at.size <= maxFile {
			content, err := s.read()
			if err != nil {
				return all, err
			}
			e.content = string(content)
		}
		all = append(all, e)
	}
}

// compareReaders checks that the two agree on every entry of an archive, and that this one reports every error of
// archive/tar. It may report more: archives that are cut on a boundary, and data after the end marker.
func compareReaders(t testing.TB, data []byte, maxFile int64) {
	t.Helper()
	want, wantErr := archiveTar(data, maxFile)
	got, err := thisReader(data, maxFile)
	if err == nil && wantErr != nil {
		t.Fatalf("archive/tar reports %v", wantErr)
	}
	if err != nil && wantErr == nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "end marker") && !strings.Contains(err.Error(), "is empty") {
		t.Fatalf("archive/tar reports nothing, this reader %v", err)
	}
	if len(got) > len(want) || err == nil && len(got) < len(want) || len(got) < len(want)-1 {
		t.Fatalf("%d entries and %v, archive/tar has %d and %v", len(got), err, len(want), wantErr)
	}
	for i, e := range got {
		if e.kind == 0 { // the name of a damaged global header is a different one each time that archive/tar reads it
			e.name = want[i].name
		}
		if e != want[i] {
			t.Fatalf("entry %d is %.200q, archive/tar has %.200q", i, e, want[i])
		}
	}
}

// archives returns all test archives: those of testdata/tar and, where there is one, of the Go installation.
func archives(t testing.TB) map[string][]byte {
	all := map[string][]byte{}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Log("no Go installation: ", err)
	}
	for prefix, dir := range map[string]string{"": "testdata/tar", "go-": filepath.Join(strings.TrimSpace(string(goroot)), "src/archive/tar/testdata")} {
		names, _ := filepath.Glob(filepath.Join(dir, "*.tar*"))
		if len(names) == 0 {
			t.Logf("there are no archives in %s", dir)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if base, ok := strings.CutSuffix(name, ".base64"); ok && err == nil {
				name = base
				data, err = base64.StdEncoding.DecodeString(string(data))
			}
			if err != nil {
				t.Fatal(err)
			}
			all[prefix+filepath.Base(name)] = data
		}
	}
	return all
}

// unpacked returns an archive without its compression, read by other means than the package's.
func unpacked(t testing.TB, data []byte) []byte {
	for magic, open := range map[string]func(io.Reader) (io.Reader, error){
		"\x1f\x8b": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"BZh":      func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil },
	} {
		if strings.HasPrefix(string(data), magic) {
			data = must(io.ReadAll(must(open(bytes.NewReader(data)))))
		}
	}
	return data
}

// TestTarArchives reads every archive in three ways, archive/tar's among them.
func TestTarArchives(t *testing.T) {
	all := archives(t)
	if len(all) < 23 {
		t.Fatalf("only %d archives", len(all))
	}
	for name, data := range all {
		t.Run(name, func(t *testing.T) {
			plain := unpacked(t, data)
			compareReaders(t, plain, 1<<24)
			opts := TarOptions{MaxFile: 1 << 24, Open: inMemory(map[string][]byte{name: data})}
			stream := briefly(must(Tar([]string{name}, opts)))
			got := checkStream(t, stream, 0)

			want, wantErr := archiveTar(plain, 1<<24)
			var files, read []string
			linked := map[string]bool{}
			for _, e := range want {
				key, _, _ := splitName(e.name)
				linked[key] = linked[key] || e.kind == tar.TypeLink
			}
			for _, e := range want {
				if key, field, ok := splitName(e.name); ok && e.kind == tar.TypeReg && !linked[key] {
					files = append(files, brief(Record{Key: key, Files: []File{{field, []byte(e.content)}}}))
				}
			}
			failed := false
			for r, err := range must(Tar([]string{name}, opts)).Epoch(t.Context(), 0) {
				failed = failed || err != nil
				for _, f := range r.Files {
					read = append(read, brief(Record{Key: r.Key, Files: []File{f}}))
				}
			}
			if wantErr != nil && !failed {
				t.Errorf("archive/tar reports %v, Tar gives %q", wantErr, got)
			}
			if failed {
				files = files[:len(read)] // the last record may be missing
			}
			equal(t, "files", read, files)
			if again := indexed(t, onDisk(t, "x.tar", plain)); !failed {
				equal(t, "indexed", again, got)
			} else if !slices.ContainsFunc(again, func(s string) bool { return strings.HasPrefix(s, "error") }) && !strings.Contains(fmt.Sprint(got), "hard link") {
				t.Errorf("Tar gives %q, OpenTar %q", got, again)
			}
		})
	}
}

// TestTarGNU has what is in the archives of testdata/tar, in every format that GNU tar writes.
func TestTarGNU(t *testing.T) {
	b := brief(Record{Key: "b", Files: []File{{"cls", []byte("2")}, {"txt", []byte(strings.Repeat("second\n", 100))}}})
	base := []string{"a{cls:1 txt:first\n}", b, "c{cls:3 txt:}"}
	long := strings.Repeat("bb-folder-number-000%d/", 7)
	for i := range 7 {
		long = strings.Replace(long, "%d", strconv.Itoa(i+1), 1)
	}
	with := func(record string) []string { return slices.Insert(slices.Clone(base), 2, record) }
	holes := func(size int, pieces map[int]string) []byte {
		data := make([]byte, size)
		for at, piece := range pieces {
			copy(data[at:], piece)
		}
		return data
	}
	pieces := map[int]string{}
	for i := range 30 {
		pieces[(i+1)*10000] = fmt.Sprintf("piece %02d", i+1)
	}
	sparse := []string{base[0],
		brief(Record{Key: "s", Files: []File{{"bin", holes(100000, map[int]string{5115: "one piece", 70000: "another piece"})}, {"cls", []byte("8")}}}),
		"t{cls:9 txt:after the holes\n}",
		brief(Record{Key: "u", Files: []File{{"bin", holes(300008, pieces)}, {"cls", []byte("10")}}})}
	links := []string{base[0], "b{cls:2 txt:first\n}", "c{cls:3}", "d/x{cls:7 txt:x\n}"}
	dump := make([]string, len(base))
	for i, r := range base {
		dump[i] = "dump/" + r
	}
	for name, want := range map[string][]string{
		"v7": base, "oldgnu": base, "gnu": base, "ustar": base, "posix": base, "posix-global": base,
		"gzip": base, "bzip2": base, "members": base, "dumpdir": dump,
		"gnu-long": with(long + "long-name{cls:4 txt:long\n}"), "oldgnu-long": with(long + "long-name{cls:4 txt:long\n}"),
		"ustar-prefix": with(long + "long-name{cls:4 txt:long\n}"), "posix-long": with(long + long + "long-name{cls:5 txt:longer\n}"),
		"gnu-utf8": {base[0], "größe/日本{cls:6 txt:größe\n}"}, "posix-utf8": {base[0], "größe/日本{cls:6 txt:größe\n}"},
		"gnu-sparse": sparse, "posix-sparse-0.0": sparse, "posix-sparse-0.1": sparse, "posix-sparse-1.0": sparse,
		"gnu-links": links, "posix-links": links,
	} {
		name = "testdata/tar/" + name + ".tar"
		stream := must(Tar([]string{name}, TarOptions{}))
		got := outcomes(briefly(stream).Epoch(t.Context(), 0))
		packed := strings.Contains("gzip bzip2 members", strings.TrimSuffix(filepath.Base(name), ".tar"))
		if &want[0] == &links[0] {
			saysAll(t, errors.New(got[1]), name, `entry "b.txt"`, `it is a hard link to "a.txt"`)
			got[1] = want[1]
		}
		equal(t, name, got, want)
		if again := indexed(t, name); packed {
			saysAll(t, errors.New(again[0]), name, "it is packed")
		} else {
			equal(t, name+" indexed", again, want)
		}
	}
	for name, says := range map[string]string{"xz": "packed with xz", "zstd": "packed with zstd"} {
		name = "testdata/tar/" + name + ".tar"
		saysAll(t, errors.New(outcomes(must(Tar([]string{name}, TarOptions{})).Epoch(t.Context(), 0))[0]), name, says, "gzip")
		saysAll(t, errors.New(indexed(t, name)[0]), name, says)
	}
}

// TestParseHeader has the headers that the fast path must take, or must leave to archive/tar.
func TestParseHeader(t *testing.T) {
	all := archives(t)
	for _, format := range []string{"v7", "oldgnu", "gnu", "ustar", "posix-global"} {
		data := all[format+".tar"]
		if format == "posix-global" {
			data = data[1024:]
		}
		name, size, ok := parseHeader(data[:512])
		equal(t, format, fmt.Sprint(name, size, ok), "a.cls1 true")
	}
	name, size, ok := parseHeader(all["ustar-prefix.tar"][:512])
	equal(t, "ustar", fmt.Sprint(name, size, ok), "a.cls1 true")
	header := all["ustar.tar"][:512]
	for at, bytes := range map[int]string{0: "a", 100: "0000644x", 108: "x", 116: "9", 124: "\x80", 136: "-1", 156: "5", 329: "x", 337: "x", 508: "tar\x00"} {
		changed := slices.Clone(header)
		copy(changed[at:], bytes)
		copy(changed[148:], fmt.Sprintf("%06o\x00 ", checksum(changed)))
		if _, _, ok := parseHeader(changed); ok != (at == 0) {
			t.Errorf("with %q at %d: %t", bytes, at, ok)
		}
		changed[148] ^= 1
		if _, _, ok := parseHeader(changed); ok {
			t.Errorf("with %q at %d and another sum", bytes, at)
		}
	}
}

// FuzzTar (which -fuzzminimizetime 10x makes faster) reads arbitrary bytes as a shard. There is always an end, nothing panics, no more memory is taken than MaxFile for a
// file, archive/tar agrees, and a resume after every record gives the rest.
func FuzzTar(f *testing.F) {
	for _, data := range archives(f) {
		if len(data) < 40<<10 {
			f.Add(data)
		}
	}
	f.Add(tarEntries("a.txt=1", "b.txt>a.txt", "b.cls=2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const maxFile = 1 << 16
		if !bytes.HasPrefix(data, []byte("\x1f\x8b")) && !bytes.HasPrefix(data, []byte("BZh")) {
			compareReaders(t, data, maxFile)
		}
		stream := briefly(must(Tar([]string{"x"}, TarOptions{MaxFile: maxFile, Open: func(_ context.Context, _ string, offset int64) (io.ReadCloser, error) {
			return &countingFile{Reader: bytes.NewReader(data[min(int(offset), len(data)):])}, nil
		}})))
		var want []string
		var cursors []Cursor
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for item, err := range stream(t.Context(), Cursor{}) {
			want = append(want, outcomes(one(item.Value, err))...)
			cursors = append(cursors, item.Next)
		}
		runtime.ReadMemStats(&after)
		if limit := uint64(16<<20 + (len(data)/tarBlock+1)*2*maxFile); after.TotalAlloc-before.TotalAlloc > limit {
			t.Fatalf("%d bytes of memory for %d of data", after.TotalAlloc-before.TotalAlloc, len(data))
		}
		for k, c := range cursors {
			if k < 8 || k > len(cursors)-8 {
				equal(t, "resumed", outcomes(stream.Run(t.Context(), &c)), want[k+1:])
			}
		}
	})
}

// A tarServer is a web server with one object, and a history of what it was asked.
type tarServer struct {
	*httptest.Server
	web   web
	mu    sync.Mutex
	asked []string        // Range and If-Range of each request; guarded by mu
	waits []time.Duration // between them
}

// serveTar starts a server whose answer to the n-th request, from 1 on, is up to answer.
func serveTar(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *tarServer {
	s := &tarServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !r.Close {
			t.Error("the connection is to be kept")
		}
		if r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("asked for the encoding %q", r.Header.Get("Accept-Encoding"))
		}
		s.mu.Lock()
		s.asked = append(s.asked, strings.TrimSpace(r.Header.Get("Range")+" "+r.Header.Get("If-Range")))
		n := len(s.asked)
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(s.Close)
	s.web = web{s.Client(), 6, time.Minute, func(_ context.Context, d time.Duration) error {
		s.waits = append(s.waits, d)
		return nil
	}}
	return s
}

// requests returns what the server was asked.
func (s *tarServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// records are the outcomes of the shard that the server has, and of another that is sound.
func (s *tarServer) records(t *testing.T, path string) []string {
	after := inMemory(map[string][]byte{"after": tarEntries("z.txt=after")})
	open := func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		if name == "after" {
			return after(ctx, name, offset)
		}
		return s.web.open(ctx, name, offset)
	}
	return outcomes(briefly(must(Tar([]string{path, "after"}, TarOptions{Open: open}))).Epoch(t.Context(), 0))
}

// object is an answer with data, as servers give it, which breaks off after limit bytes unless that is negative.
func object(w http.ResponseWriter, r *http.Request, data []byte, tag string, limit int) {
	w.Header().Set("ETag", tag)
	if limit >= 0 {
		w = &breaking{w, limit}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// A breaking answer ends with the connection.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	if b.left < len(p) {
		b.ResponseWriter.Write(p[:b.left])
		panic(http.ErrAbortHandler)
	}
	b.left -= len(p)
	return b.ResponseWriter.Write(p)
}

// TestWeb reads a shard from servers that behave badly, each in its own way. Every record comes exactly once, or the
// shard ends in an error.
func TestWeb(t *testing.T) {
	var entries []string
	var all []string
	for i := range 100 {
		entries = append(entries, fmt.Sprintf("%d.txt=%d", i, i), fmt.Sprintf("%d.bin=%s", i, strings.Repeat("x", 7*i)))
		all = append(all, brief(Record{Key: strconv.Itoa(i), Files: []File{{"txt", []byte(strconv.Itoa(i))}, {"bin", []byte(strings.Repeat("x", 7*i))}}}))
	}
	data := tarEntries(entries...) // of about 150 kB
	all = append(all, "z{txt:after}")
	other := slices.Clone(data)
	const tag = `"one"`
	for _, c := range []struct {
		name   string
		answer func(n int, w http.ResponseWriter, r *http.Request)
		asked  int    // so often
		says   string // the error, unless there is none
	}{
		{"good", func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, data, tag, -1) }, 1, ""},
		{"breaks all the time", func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, data, tag, 16000) }, (len(data) + 15999) / 16000, ""},
		{"breaks, and has no ranges", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			object(w, r, data, tag, 30000*n)
		}, (len(data) + 29999) / 30000, ""},
		{"breaks without a length", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			w = &breaking{w, 60000 * n}
			for part := range slices.Chunk(data, 1000) {
				w.Write(part)
			}
		}, (len(data) + 59999) / 60000, ""},
		{"breaks, and never gets further", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			object(w, r, data, tag, 30000)
		}, 6, "attempt 6: unexpected EOF"},
		{"not yet", func(n int, w http.ResponseWriter, r *http.Request) {
			if status := []int{503, 408, 429, 500, 504}; n <= len(status) {
				w.Header().Set("Retry-After", "100")
				w.WriteHeader(status[n-1])
				return
			}
			object(w, r, data, tag, -1)
		}, 6, ""},
		{"never", func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }, 6, "attempt 6: 503 Service Unavailable"},
		{"no connection", func(n int, w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, 6, "attempt 6: EOF"},
		{"not found", func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, 1, "404 Not Found"},
		{"forbidden", func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(403) }, 1, "403 Forbidden"},
		{"forbidden later", func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				object(w, r, data, tag, 30000)
				return
			}
			w.WriteHeader(403)
		}, 2, "403 Forbidden"},
		{"nothing", func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, 1, "204 No Content"},
		{"changes its tag", func(n int, w http.ResponseWriter, r *http.Request) {
			object(w, r, other, fmt.Sprintf(`"%d"`, n), 30000)
		}, 2, "has changed"},
		{"changes its tag, and does not look", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-Range")
			object(w, r, other, fmt.Sprintf(`"%d"`, n), 30000)
		}, 2, "has changed"},
		{"changes its date", func(n int, w http.ResponseWriter, r *http.Request) {
			http.ServeContent(&breaking{w, 30000}, r, "", time.Unix(int64(n), 0), bytes.NewReader(other))
		}, 2, "has changed"},
		{"changes its length", func(n int, w http.ResponseWriter, r *http.Request) {
			object(w, r, data[:len(data)-n], "", 30000)
		}, 2, "has changed"},
		{"has a weak tag", func(n int, w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Range") != "" {
				t.Error("a weak tag in If-Range")
			}
			object(w, r, data, `W/"one"`, 40000)
		}, (len(data) + 39999) / 40000, ""},
		{"changes its weak tag", func(n int, w http.ResponseWriter, r *http.Request) {
			object(w, r, other, fmt.Sprintf(`W/"%d"`, n), 30000)
		}, 2, "has changed"},
		{"breaks before the first byte", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 6, "attempt 6: unexpected EOF"},
		{"changes before the first byte", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, n))
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 2, "has changed"},
		{"points to nowhere", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://user:secret@host:bad/x?sig=secret")
			w.WriteHeader(302)
		}, 1, "something that is not an address"},
		{"promises more than it has", func(n int, w http.ResponseWriter, r *http.Request) {
			if n > 1 {
				w.WriteHeader(416)
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(data)+1000))
			w.Write(data)
		}, 2, "416"},
		{"is cut on the server", func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, data[:20480], tag, -1) }, 1, "unexpected EOF"},
		{"gives another range", func(n int, w http.ResponseWriter, r *http.Request) {
			if n > 1 {
				r.Header.Set("Range", "bytes=5-")
			}
			object(w, r, data, tag, 30000)
		}, 2, `answers with the range "bytes 5-`},
		{"gives short ranges", func(n int, w http.ResponseWriter, r *http.Request) {
			if from, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
				first := must(strconv.Atoi(strings.TrimSuffix(from, "-")))
				r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+29999))
				object(w, r, data, tag, -1)
				return
			}
			object(w, r, data, tag, 30000)
		}, (len(data) + 29999) / 30000, ""},
		{"packs on the way", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			object(w, r, gzipped(data), tag, -1)
		}, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serveTar(t, c.answer)
			got := s.records(t, s.URL+"/x.tar")
			equal(t, "requests", len(s.requests()), c.asked)
			if c.says == "" {
				equal(t, "records", got, all)
				return
			}
			n := len(got) - 2
			if n < 0 {
				t.Fatalf("got %q", got)
			}
			equal(t, "records before the error", got[:n], all[:n])
			if saysAll(t, errors.New(got[n]), "/x.tar", c.says); strings.Contains(got[n], "secret") {
				t.Error(got[n])
			}
			equal(t, "the next shard", got[n+1], "z{txt:after}")
		})
	}
}

func TestWebRequests(t *testing.T) {
	data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt="+strings.Repeat("y", 5000))
	s := serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n == 2 {
			w.Header().Set("Retry-After", "100")
			w.WriteHeader(429)
			return
		}
		object(w, r, data, `"tag"`, 4000)
	})
	got := s.records(t, s.URL)
	equal(t, "records", len(got), 3)
	equal(t, "requests", s.requests(), []string{"", `bytes=4000- "tag"`, `bytes=4000- "tag"`, `bytes=8000- "tag"`, `bytes=12000- "tag"`})
	for i, want := range []time.Duration{time.Second, 100 * time.Second, time.Second, time.Second} {
		if d := s.waits[i]; d > want || d < want/2 {
			t.Errorf("wait %d is %v, want %v or up to a half less", i, d, want)
		}
	}

	// A date to come back at.
	s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			w.Header().Set("Retry-After", time.Now().Add(100*time.Second).UTC().Format(http.TimeFormat))
			w.WriteHeader(503)
			return
		}
		object(w, r, data, `"tag"`, -1)
	})
	equal(t, "records", len(s.records(t, s.URL)), 3)
	if d := s.waits[0]; d <= time.Second || d > 101*time.Second { // the time since then is off
		t.Errorf("a wait of %v", d)
	}

	// After Close nothing is asked for.
	s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, data, `"tag"`, 6000) })
	r := must(s.web.open(t.Context(), s.URL, 0))
	r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, os.ErrClosed) || len(s.requests()) != 1 {
		t.Errorf("after Close: %v, %d requests", err, len(s.requests()))
	}

	// Waits grow, until they do not.
	s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) })
	s.web.attempts = 10
	s.records(t, s.URL)
	for i, d := range s.waits {
		if want := min(time.Second<<i, 30*time.Second); d > want || d < want/2 {
			t.Errorf("wait %d is %v, want %v or up to a half less", i, d, want)
		}
	}

	// A resume asks for what follows the cursor, but of a packed shard for all.
	for _, packed := range []bool{false, true} {
		body := data
		if packed {
			body = gzipped(data)
		}
		s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, body, `"tag"`, -1) })
		stream := must(Tar([]string{s.URL}, TarOptions{Open: s.web.open}))
		for item := range stream(t.Context(), Cursor{}) {
			got := outcomes(briefly(stream).Run(t.Context(), ptr(throughJSON(t, item.Next))))
			equal(t, "the rest", got, []string{brief(Record{Key: "b", Files: []File{{"txt", []byte(strings.Repeat("y", 5000))}}})})
			break
		}
		equal(t, "requests", s.requests(), [][]string{{"", "bytes=5632-"}, {"", ""}}[map[bool]int{true: 1}[packed]])
	}

	// A context that ends while the server is waited for ends the stream.
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Write(data[:6000])
		w.(http.Flusher).Flush()
		cancel(stopped)
		<-r.Context().Done()
	})
	var last error
	for item, err := range must(Tar([]string{s.URL, "y"}, TarOptions{Open: s.web.open}))(ctx, Cursor{}) {
		if last = err; err != nil && !item.Next.isZero() {
			t.Errorf("%v is not the last pair", err)
		}
	}
	if last != stopped {
		t.Errorf("ended with %v", last)
	}
}

// TestWebStall has a server that stops in the middle, in fake time, over a network in memory.
func TestWebStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt=2")
		var mu sync.Mutex
		var asked []string // guarded by mu
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				r, err := http.ReadRequest(bufio.NewReader(server))
				if err != nil {
					return
				}
				mu.Lock()
				asked = append(asked, r.Header.Get("Range"))
				n := len(asked)
				mu.Unlock()
				switch n {
				case 1: // after some bytes
					fmt.Fprintf(server, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(data), data[:3000])
				case 2: // before the first
				case 10:
					fmt.Fprintf(server, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(data), data)
				default:
					fmt.Fprintf(server, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3000-%d/%d\r\nContent-Length: %d\r\n\r\n%s", len(data)-1, len(data), len(data)-3000, data[3000:])
				}
				io.Copy(io.Discard, server) // until the client goes
			}()
			return client, nil
		}}
		defer transport.CloseIdleConnections()
		w := web{&http.Client{Transport: transport}, 6, time.Minute, pause}
		start := time.Now()
		got := collect(t, briefly(must(Tar([]string{"http://x/y.tar"}, TarOptions{Open: w.open}))).Epoch(t.Context(), 0))
		equal(t, "records", len(got), 2)
		mu.Lock()
		equal(t, "requests", asked, []string{"", "bytes=3000-", "bytes=3000-"})
		if d := time.Since(start); d < 2*time.Minute || d > 2*time.Minute+3*time.Second {
			t.Errorf("it took %v, want two stalls of a minute and two waits, of a second and of two", d)
		}

		// A caller that takes its time is no stall.
		asked, data = make([]string, 9), tarEntries("a.bin="+strings.Repeat("x", 3*tarBuffer), "b.bin="+strings.Repeat("x", 3*tarBuffer))
		mu.Unlock()
		records := 0
		for _, err := range must(Tar([]string{"http://x/y.tar"}, TarOptions{Open: w.open})).Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			records++
			time.Sleep(time.Hour)
		}
		mu.Lock()
		equal(t, "records and requests", []int{records, len(asked)}, []int{2, 10})
		mu.Unlock()
	})
}

// TestSecrets looks for what an address should not tell in every error there is.
func TestSecrets(t *testing.T) {
	s := serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "secret" || r.URL.RawQuery != "sig=secret" {
			t.Errorf("asked as %q with %q and %q", user, password, r.URL.RawQuery)
		}
		w.WriteHeader(404)
	})
	address := strings.Replace(s.URL, "http://", "http://user:secret@", 1) + "/x.tar?sig=secret#secret"
	for _, name := range []string{address, "http://user:secret@127.0.0.1:1/x.tar?sig=secret", "http://user:secret@127.0.0.1:secret/x.tar", "http://user:sec%ret@x/", "s3://user:secret@bucket/x.tar?sig=secret"} {
		s.web.attempts = 1
		got := outcomes(must(Tar([]string{name}, TarOptions{Open: s.web.open})).Epoch(t.Context(), 0))
		if len(got) != 1 || !strings.HasPrefix(got[0], "error") || strings.Contains(got[0], "secret") || strings.Contains(got[0], "sec%") {
			t.Errorf("%s: %q", name, got)
		}
	}
	saysAll(t, errors.New(outcomes(must(Tar([]string{"s3://bucket/x.tar"}, TarOptions{})).Epoch(t.Context(), 0))[0]), "s3://bucket/x.tar", "http and https", "Opener")
}

func TestTarOptions(t *testing.T) {
	open := inMemory(nil)
	for _, c := range []struct {
		shards []string
		opts   TarOptions
		says   []string
	}{
		{nil, TarOptions{}, []string{"Tar", "no shards"}},
		{[]string{"a", ""}, TarOptions{}, []string{"shard 1 has an empty name"}},
		{[]string{"a", "b"}, TarOptions{Shard: Shard{0, 3}}, []string{"2 shards are too few for 3 ranks", "Stream.Shard"}},
		{[]string{"a", "b"}, TarOptions{Shard: Shard{2, 2}}, []string{"Tar", "Index: 2", "0 to 1"}},
		{[]string{"a"}, TarOptions{MaxFile: -1}, []string{"MaxFile is -1", "must not be negative"}},
	} {
		c.opts.Open = open
		s, err := Tar(c.shards, c.opts)
		if s != nil {
			t.Errorf("%q: a stream in spite of %v", c.shards, err)
		}
		saysAll(t, err, c.says...)
	}
}

// TestTarShards deals shards out to ranks, each epoch in its own order.
func TestTarShards(t *testing.T) {
	shards, names := map[string][]byte{}, []string{}
	for i := range 10 {
		names = append(names, fmt.Sprintf("%d.tar", i))
		shards[names[i]] = tarEntries(fmt.Sprintf("%da.txt=", i), fmt.Sprintf("%db.txt=", i))
	}
	keys := func(opts TarOptions, epoch int) (all []string) {
		opts.Open = inMemory(shards)
		for _, r := range collect(t, must(Tar(names, opts)).Epoch(t.Context(), epoch)) {
			all = append(all, r.Key)
		}
		return all
	}
	equal(t, "in order", keys(TarOptions{}, 3), "[0a 0b 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b 6a 6b 7a 7b 8a 8b 9a 9b]")
	equal(t, "rank 2 of 4", keys(TarOptions{Shard: Shard{2, 4}}, 0), "[2a 2b 6a 6b]")
	equal(t, "rank 1 of 4", keys(TarOptions{Shard: Shard{1, 4}}, 0), "[1a 1b 5a 5b 9a 9b]")
	seen := map[string]bool{}
	for seed := range 3 {
		for epoch := range 3 {
			shuffled := keys(TarOptions{Shuffle: true, Seed: uint64(seed)}, epoch)
			var want, dealt []string
			for pos := range 10 {
				i := Random(10, uint64(seed)).Order(epoch)(pos)
				want = append(want, fmt.Sprintf("%da", i), fmt.Sprintf("%db", i))
			}
			equal(t, "shuffled", shuffled, want)
			seen[fmt.Sprint(shuffled)] = true
			for rank := range 3 {
				part := keys(TarOptions{Shuffle: true, Seed: uint64(seed), Shard: Shard{rank, 3}}, epoch)
				for k := 0; k < len(part); k += 2 {
					i := rank + 3*(k/2)
					equal(t, "dealt after the shuffle", part[k:k+2], want[2*i:2*i+2])
				}
				dealt = append(dealt, part...)
			}
			slices.Sort(want)
			slices.Sort(dealt)
			equal(t, "all ranks", dealt, want)
		}
	}
	if len(seen) != 9 {
		t.Errorf("%d orders in 3 epochs of 3 seeds", len(seen))
	}
	checkStream(t, briefly(must(Tar(names, TarOptions{Shuffle: true, Seed: 1, Shard: Shard{1, 2}, Open: inMemory(shards)}))), 5)

	// The cursor fits the same shards elsewhere, and no others.
	at := Cursor{}
	for range must(Tar(names, TarOptions{Open: inMemory(shards)})).Run(t.Context(), &at) {
		if at.Pos == 3 {
			break
		}
	}
	elsewhere, moved := map[string][]byte{}, []string{}
	for _, name := range names {
		moved = append(moved, "https://host/dir/"+name+"?sig=1")
		elsewhere[moved[len(moved)-1]] = shards[name]
	}
	rest := outcomes(briefly(must(Tar(moved, TarOptions{Open: inMemory(elsewhere)}))).Run(t.Context(), ptr(throughJSON(t, at))))
	equal(t, "the rest", rest[:2], "[1b{txt:} 2a{txt:}]")
	for _, c := range []struct {
		names []string
		opts  TarOptions
	}{
		{names[:9], TarOptions{}},
		{append(slices.Clone(names[1:]), names[0]), TarOptions{}},
		{names, TarOptions{Shuffle: true}},
		{names, TarOptions{Shard: Shard{0, 2}}},
	} {
		c.opts.Open = inMemory(shards)
		got := outcomes(must(Tar(c.names, c.opts)).Run(t.Context(), ptr(at)))
		if len(got) != 1 {
			t.Fatalf("%v: %q", c.opts, got)
		}
		saysAll(t, errors.New(got[0]), "it was made by Tar(", "this is Tar(")
	}

	// After a last shard that failed comes nothing; a shard after that there is not.
	rank1 := must(Tar(names, TarOptions{Shard: Shard{1, 4}, Open: inMemory(nil)}))
	for item := range rank1(t.Context(), Cursor{}) {
		at = item.Next
	}
	equal(t, "after the last shard", outcomes(rank1.Run(t.Context(), ptr(throughJSON(t, at)))), "[]")
	damaged := *at.State.(*stage)
	damaged.N++
	saysAll(t, errors.New(outcomes(rank1.Run(t.Context(), &Cursor{at.Epoch, at.Pos, damaged}))[0]), "damaged", "3 shards")

	// Names are compared one by one.
	at = Cursor{}
	pair := inMemory(map[string][]byte{"ab": tarEntries("1.txt=", "2.txt="), "c": tarEntries("3.txt="), "a": tarEntries("4.txt="), "bc": tarEntries("5.txt=")})
	for range must(Tar([]string{"ab", "c"}, TarOptions{Open: pair})).Run(t.Context(), &at) {
		break
	}
	saysAll(t, errors.New(outcomes(must(Tar([]string{"a", "bc"}, TarOptions{Open: pair})).Run(t.Context(), &at))[0]), "it was made by Tar(")

	// Several shards at once.
	var parts []Stream[Record]
	for i := range 3 {
		parts = append(parts, must(Tar(names, TarOptions{Shard: Shard{i, 3}, Open: inMemory(shards)})).Prefetch(4))
	}
	got := checkStream(t, briefly(Mix(MixOptions{Stop: StopAtLast}, parts...)), 0)
	equal(t, "mixed", got[:6], "[0a{txt:} 1a{txt:} 2a{txt:} 0b{txt:} 1b{txt:} 2b{txt:}]")
	equal(t, "mixed", len(got), 20)
}

// A faulty file fails in its own way after n bytes.
type faultyFile struct {
	io.Reader
	n    int
	fail func() error
}

func (f *faultyFile) Read(p []byte) (int, error) {
	if f.n == 0 {
		return 0, f.fail()
	}
	n, err := f.Reader.Read(p[:min(len(p), f.n)])
	f.n -= n
	return n, err
}

func (f *faultyFile) Close() error { return nil }

func TestTarOpeners(t *testing.T) {
	data := tarEntries("a.txt=1", "b.txt=2", "c.txt=3")
	failing := func(fail func() error) Opener {
		return func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				return &faultyFile{bytes.NewReader(data), 2048 + 600, fail}, nil
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}
	}
	rest := "[a{txt:1} b{txt:2} c{txt:3}]"
	for _, c := range []struct {
		open   Opener
		before int
		says   []string
	}{
		{failing(func() error { return errBad }), 2, []string{`entry "c.txt"`, "offset 2048", "bad sample", `record "c"`}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			f := &faultyFile{bytes.NewReader(data), len(data), func() error { return io.EOF }}
			if name == "x" {
				f.n, f.fail = 0, func() error { panic("broken at once") }
			}
			return f, nil
		}, 0, []string{"panic: broken at once", "offset 0"}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			f := &faultyFile{bytes.NewReader(data), len(data), func() error { return io.EOF }}
			if name == "x" {
				denied := errors.New("denied")
				f.n, f.fail = 0, func() error {
					defer func() { denied = io.EOF }()
					return denied
				}
			}
			return f, nil
		}, 0, []string{"denied", "offset 0"}},
		{failing(func() error { panic("broken") }), 2, []string{`entry "c.txt"`, "panic: broken"}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				panic("no shard")
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}, 0, []string{"panic: no shard"}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				return nil, nil
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}, 0, []string{"the Opener returned nothing"}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				return nil, io.EOF
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}, 0, []string{"EOF"}},
	} {
		got := outcomes(briefly(must(Tar([]string{"x", "y"}, TarOptions{Open: c.open}))).Epoch(t.Context(), 0))
		if len(got) != c.before+4 {
			t.Fatalf("%q: %q", c.says, got)
		}
		saysAll(t, errors.New(got[c.before]), append(c.says, `shard "x"`)...)
		equal(t, "the next shard", got[c.before+1:], rest)
	}

	// A reader that gives neither bytes nor an error.
	large := tarEntries("a.txt=" + strings.Repeat("x", 2*tarBuffer))
	for _, n := range []int{100, 1000, len(large) - 100} {
		got := outcomes(must(Tar([]string{"x"}, TarOptions{Open: func(context.Context, string, int64) (io.ReadCloser, error) {
			return &faultyFile{bytes.NewReader(large), n, func() error { return nil }}, nil
		}})).Epoch(t.Context(), 0))
		saysAll(t, errors.New(got[len(got)-1]), "multiple Read calls return no data or error")
	}

	// Files: a missing one is an error, a resume seeks, and each is closed.
	name := onDisk(t, "x.tar", data)
	stream := must(Tar([]string{filepath.Join(t.TempDir(), "missing.tar"), name}, TarOptions{}))
	got := outcomes(briefly(stream).Epoch(t.Context(), 0))
	saysAll(t, errors.New(got[0]), "missing.tar", "no such file")
	equal(t, "the next shard", got[1:], rest)
	equal(t, "of a folder", len(outcomes(must(Tar([]string{t.TempDir(), name}, TarOptions{})).Epoch(t.Context(), 0))), 4)
	checkStream(t, briefly(stream), 0)
	r := must(Open(t.Context(), name, 512))
	equal(t, "from byte 512 on", string(must(io.ReadAll(r))[:1]), "1")
	r.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBad)
	if _, err := Open(ctx, name, 0); err != errBad {
		t.Errorf("Open with a context that has ended: %v", err)
	}
	if r, err := Open(t.Context(), name, -1); r != nil || err == nil {
		t.Errorf("from byte -1 on: %v, %v", r, err)
	}
	if r, err := Open(t.Context(), name+"missing", 0); r != nil || err == nil {
		t.Errorf("a missing file: %v, %v", r, err)
	}
	file := &countingFile{Reader: bytes.NewReader(data)}
	for range must(Tar([]string{"x"}, TarOptions{Open: func(context.Context, string, int64) (io.ReadCloser, error) { return file, nil }})).Epoch(t.Context(), 0) {
		break
	}
	if !file.closed {
		t.Error("the file is open after a break")
	}

	// A context that ends is noticed in a shard that gives no record, and in one that does not end.
	for _, block := range [][]byte{tarEntries("README=")[:512], make([]byte, 512)} {
		ctx, cancel := context.WithCancelCause(t.Context())
		blocks := 0
		endless := readerFunc(func(p []byte) (int, error) {
			if blocks++; blocks == 100 {
				cancel(errBad)
			}
			return copy(p, block), nil
		})
		equal(t, "an endless shard", outcomes(must(Tar([]string{"x"}, TarOptions{Open: func(context.Context, string, int64) (io.ReadCloser, error) {
			return io.NopCloser(endless), nil
		}})).Epoch(ctx, 0)), "[error bad sample]")
	}

	// A record may have many files.
	var b bytes.Buffer
	w := NewTarWriter(&b)
	many := Record{Key: "clip"}
	for i := range 20000 {
		many.Files = append(many.Files, File{Name: fmt.Sprintf("%05d.txt", i)})
	}
	if err := errors.Join(w.Write(many), w.Close()); err != nil {
		t.Fatal(err)
	}
	for r := range must(Tar([]string{"x"}, TarOptions{Open: inMemory(map[string][]byte{"x": b.Bytes()})})).Epoch(t.Context(), 0) {
		equal(t, "files", len(r.Files), 20000)
	}
}

// TestTarMemory streams shards of which the longest would not fit into a test: what is held does not grow.
func TestTarMemory(t *testing.T) {
	record := tarEntries("a.bin=" + strings.Repeat("x", 4096))
	record = record[:len(record)-1024]
	held := func(shards, records int) uint64 {
		names := slices.Repeat([]string{"x"}, shards)
		stream := must(Tar(names, TarOptions{Open: func(context.Context, string, int64) (io.ReadCloser, error) {
			n := 0 // records as they are asked for, with keys that differ
			return io.NopCloser(io.MultiReader(readerFunc(func(p []byte) (int, error) {
				if n == records {
					return 0, io.EOF
				}
				copy(p, record)
				copy(p, fmt.Sprintf("%09d.bin\x00", n))
				copy(p[148:], "        ")
				sum := 0
				for _, c := range p[:512] {
					sum += int(c)
				}
				copy(p[148:], fmt.Sprintf("%06o\x00 ", sum))
				n++
				return len(record), nil
			}), bytes.NewReader(make([]byte, 1024)))), nil
		}}))
		most, k := uint64(0), 0
		for _, err := range stream.Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if k++; k%(shards*records/4) == 0 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		equal(t, "records", k, shards*records)
		return most
	}
	few := held(1, 100)
	for _, size := range [][2]int{{1, 20000}, {2000, 10}} {
		if many := held(size[0], size[1]); many > few+(1<<20) {
			t.Errorf("%d shards of %d records hold %d bytes, 1 of 100 %d", size[0], size[1], many, few)
		}
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestTarDataset(t *testing.T) {
	one := onDisk(t, "one.tar", tarEntries("d/a.txt=1", "d/a.CLS=2", "README=3", "b.bin="+strings.Repeat("x", 3000), "b.txt=4"))
	two := onDisk(t, "two.tar", tarEntries("c.txt=5", "c.bin="+strings.Repeat("y", 1<<20), "z="+strings.Repeat("z", 5<<20), "c.cls=6"))
	data := must(OpenTar(one, two, one))
	defer data.Close()
	equal(t, "Len", data.Len(), 5)
	want := indexed(t, one)
	want = slices.Concat(want, indexed(t, two), want)
	equal(t, "records", want[0], "d/a{txt:1 cls:2}")

	loader := newLoader[Record](t, data, Options{BatchSize: 2, Workers: 4}) // at once
	var got []string
	for range 5 {
		got = nil
		for _, batch := range collect(t, loader.Epoch(t.Context(), 0)) {
			for _, r := range batch {
				got = append(got, brief(r))
				if f := r.Files[0]; cap(f.Data) != len(f.Data) {
					t.Errorf("field %s of %s may grow into the next", f.Name, r.Key)
				}
			}
		}
		equal(t, "loaded", got, want)
	}
	for _, i := range []int{-1, 5} {
		_, err := data.Get(t.Context(), i)
		saysAll(t, err, fmt.Sprintf("index %d", i), "5 samples")
	}
	if r := must(data.Get(t.Context(), 3)); r.Shard != one {
		t.Errorf("record 3 is of shard %s", r.Shard)
	}
	data.Close()
	_, err := data.Get(t.Context(), 0)
	if e := (*TarError)(nil); !errors.As(err, &e) || !errors.Is(err, os.ErrClosed) || e.Shard != one || e.Entry != "d/a.txt" {
		t.Errorf("after Close: %v", err)
	}

	_, err = OpenTar()
	saysAll(t, err, "OpenTar", "no shards")
	_, err = OpenTar(one, filepath.Join(t.TempDir(), "missing.tar"))
	saysAll(t, err, "missing.tar", "no such file")
	for _, scheme := range []string{"https", "HTTPS", "s3"} {
		_, err = OpenTar(scheme + "://user:secret@host/x.tar?sig=secret")
		if saysAll(t, err, strings.ToLower(scheme)+"://host/x.tar", "use Tar"); strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
	_, err = OpenTar(onDisk(t, "x.tar", gzipped(tarEntries("a.txt=1"))))
	saysAll(t, err, "x.tar", "packed", "use Tar")
}

// TestTarIndex writes an index, byte for byte, and reads it and those that others write.
func TestTarIndex(t *testing.T) {
	shard := tarEntries("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "README=3")
	name := onDisk(t, "x.tar", shard)
	index := strings.TrimSuffix(name, "tar") + "idx"
	want := indexed(t, name)
	data := must(OpenTar(name))
	if err := data.WriteIndex(); err != nil {
		t.Fatal(err)
	}
	data.Close()
	const text = "v1.2 2\ntxt 1024 5 d/a.txt Seg.PNG 2048 1 d/a.Seg.PNG\ntxt 3072 0 b.txt cls 3584 1 b.cls\n"
	equal(t, "the index", string(must(os.ReadFile(index))), text)
	equal(t, "files beside the shard", len(must(os.ReadDir(filepath.Dir(name)))), 2)
	equal(t, "with the index", indexed(t, name), want)

	write := func(text string) {
		if err := os.WriteFile(index, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("v1.2 2\r\ntxt 1024 5 d/a.txt seg.png 2048 1 d/a.Seg.PNG\r\ntxt 3072 0 b.txt cls 3584 1 b.cls\r\n")
	equal(t, "with other line ends", indexed(t, name), want)

	// An index that has what is no record, cuts one in two, or lacks something of a record.
	for _, c := range []struct {
		shard []byte
		text  string
		want  string
	}{
		{tarEntries("__m__=x", "a.txt=1", ".h=2", "a.cls=3"), "v1.2 4\n 1 512 1 __m__\ntxt 1536 1 a.txt\nh 2560 1 .h\ncls 3584 1 a.cls\n", "[a{txt:1 cls:3}]"},
		{tarEntries("d/", "a.txt=1", "README=2", "a.cls=3", "b/"), "v1.2 2\ntxt 1024 1 a.txt\ncls 3072 1 a.cls\n", "[a{txt:1 cls:3}]"},
		{tarEntries("a.txt=1", "b.txt=2", "c.txt=3"), "v1.2 2\ntxt 512 1 a.txt\ntxt 2560 1 c.txt\n", ""},
		{tarEntries("a.txt=1", "b.txt=2", "c.txt=3"), "v1.2 2\ntxt 1536 1 b.txt\ntxt 2560 1 c.txt\n", ""},
		{tarEntries("a.txt=1", "a.cls>a.txt", "b.txt=2"), "v1.2 2\ntxt 512 1 a.txt\ntxt 2048 1 b.txt\n", ""},
		{tarEntries("a.txt=1", "b.txt=2", "b.cls>a.txt"), "v1.2 2\ntxt 512 1 a.txt\ntxt 1536 1 b.txt\n", ""},
		{tarEntries("a.txt=1", "b.txt=2"), "v1.2 0\n", "[a{txt:1} b{txt:2}]"},
	} {
		name := onDisk(t, "x.tar", c.shard)
		if err := os.WriteFile(strings.TrimSuffix(name, "tar")+"idx", []byte(strings.Replace(c.text, "\n 1 512", "\nx 512", 1)), 0o666); err != nil {
			t.Fatal(err)
		}
		if got := indexed(t, name); c.want != "" {
			equal(t, c.text, got, c.want)
		} else {
			saysAll(t, errors.New(got[0]), "the shard is not the one that was indexed", "x.idx")
		}
	}

	for _, c := range []struct{ text, says string }{
		{"", `it begins with ""`}, {"v1.1 2\n", `"v1.1 2", must begin with "v1.2"`}, {"\x00\x00\x02\x00", "it begins with"}, {"v1.2 x\n", "v1.2 x"}, {"v1.2 2", "0 lines of records, its first line says 2"},
		{"v1.2 3\ntxt 1024 5 d/a.txt\n", "1 lines of records, its first line says 3"},
		{"v1.2 0\ntxt 1024 5 d/a.txt\n", "1 lines of records, its first line says 0"},
		{"v1.2 1\ntxt 1024 5\n", "line 2 has 3 words"}, {"v1.2 1\ntxt 1024 5 d/a b.txt\n", "line 2 has 5 words"}, {"v1.2 2\n\n\n", "line 2 has 0 words"},
		{"v1.2 1\ntxt 1000 5 d/a.txt\n", `line 2: "d/a.txt" has the offset 1000`}, {"v1.2 1\ntxt 0 5 d/a.txt\n", "the offset 0"}, {"v1.2 1\ntxt -512 5 d/a.txt\n", "the offset -512"},
		{"v1.2 1\ntxt 1024 -5 d/a.txt\n", "the size -5"}, {"v1.2 1\ntxt 1024 500000 d/a.txt\n", "the size 500000"}, {"v1.2 1\ntxt 1024 9223372036854775807 d/a.txt\n", "9223372036854775807"},
		{"v1.2 1\ntxt 99999999999999999999 5 d/a.txt\n", "99999999999999999999"}, {"v1.2 1\ntxt 1024 x d/a.txt\n", "the size x"},
		{"v1.2 1\ntxt 1024 5 d/a.txt txt 2048 1 d/a.TXT\n", `line 2: record "d/a" has another field "txt"`}, {"v1.2 2\ncls 3584 1 b.cls\ntxt 1024 5 d/a.txt\n", `line 3: "d/a.txt" has the offset 1024`},
	} {
		write(c.text)
		_, err := OpenTar(name)
		saysAll(t, err, "x.idx", c.says, "without it the shard itself is read")
	}
	os.Remove(index)
	if err := os.Mkdir(index, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := OpenTar(name)
	saysAll(t, err, "x.idx", "is a directory")

	// An index of another shard is found out when it is opened, or at the first read of a record it is wrong about.
	for _, c := range []struct {
		shard []byte
		open  bool // found out then
		bad   int  // or by so many reads
	}{
		{shard, false, 0},
		{tarEntries("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "README=3", "c.txt=4"), true, 0},
		{shard[:3584+512], true, 0},
		{tarEntries("d/", "d/A.txt=first", "d/A.Seg.PNG=1", "b.txt=", "b.cls=2"), false, 1},
		{tarEntries("d/", "d/a.txt=other!", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2"), false, 1},
		{tarEntries("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.cls=", "b.txt=2"), false, 1},
		{tarEntries("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls>b.txt", "c="), false, 1},
		{tarEntries("d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "c/", "c=", "c=", "c="), true, 0},
	} {
		name := onDisk(t, "x.tar", c.shard)
		if err := os.WriteFile(strings.TrimSuffix(name, "tar")+"idx", []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		got := indexed(t, name)
		bad := 0
		for _, g := range got {
			if strings.HasPrefix(g, "error") {
				bad++
				if saysAll(t, errors.New(g), "x.tar"); !strings.Contains(g, "has been cut") {
					saysAll(t, errors.New(g), "the shard is not the one that was indexed", "x.idx")
				}
			}
		}
		if c.open != (len(got) == 1) || !c.open && bad != c.bad {
			t.Errorf("%d bytes: %q", len(c.shard), got)
		}
	}
	// Also of names that do not fit into one header, whose records have the same size.
	for _, prefix := range []string{"ä", strings.Repeat("x", 120)} {
		name := onDisk(t, "x.tar", tarEntries(prefix+"1.txt=1", prefix+"2.txt=2", prefix+"3.txt=3"))
		data := must(OpenTar(name))
		if err := data.WriteIndex(); err != nil {
			t.Fatal(err)
		}
		data.Close()
		want := []string{prefix + "1{txt:1}", prefix + "2{txt:2}", prefix + "3{txt:3}"}
		equal(t, "with an index", indexed(t, name), want)
		if err := os.WriteFile(name, tarEntries(prefix+"3.txt=3", prefix+"1.txt=1", prefix+"2.txt=2"), 0o666); err != nil {
			t.Fatal(err)
		}
		for _, got := range indexed(t, name) {
			saysAll(t, errors.New(got), "the shard is not the one that was indexed")
		}
	}
	// And so is a shard that changes while it is open.
	name = onDisk(t, "x.tar", shard)
	data = must(OpenTar(name))
	defer data.Close()
	for _, change := range [][]byte{tarEntries("e/", "e/a.txt=first"), shard[:1024]} {
		if err := os.WriteFile(name, change, 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := data.Get(t.Context(), 0)
		saysAll(t, err, "the shard is not the one that was indexed", "x.tar")
	}

	for _, c := range []struct {
		entries []string
		says    string
	}{
		{[]string{"a b.txt=1"}, `"a b.txt"`}, {[]string{"a.txt=1", "a.cls>a.txt"}, `"a.cls"`}, {[]string{"a.=1"}, `"a."`}, {nil, "no records"},
		{[]string{"a.txt=1", "a.txt=2"}, "another field"},
	} {
		data := must(OpenTar(onDisk(t, "x.tar", tarEntries(c.entries...))))
		saysAll(t, data.WriteIndex(), "x.idx", c.says)
		data.Close()
	}
	name = onDisk(t, "sparse.tar", archives(t)["gnu-sparse.tar"])
	data = must(OpenTar(name))
	saysAll(t, data.WriteIndex(), `"s.bin"`)
	data.Close()
	// Every other archive of GNU tar reads the same with an index as without.
	for _, format := range []string{"v7", "oldgnu", "gnu", "ustar", "posix", "gnu-long", "oldgnu-long", "ustar-prefix", "posix-long", "posix-global", "gnu-utf8", "posix-utf8", "dumpdir"} {
		name := onDisk(t, "x.tar", archives(t)[format+".tar"])
		want := indexed(t, name)
		data := must(OpenTar(name))
		if err := data.WriteIndex(); err != nil {
			t.Fatal(err)
		}
		data.Close()
		equal(t, format, indexed(t, name), want)
	}
}

// FuzzTarIndex reads arbitrary bytes as the index of a shard: what it gives is what is in the shard, or an error.
func FuzzTarIndex(f *testing.F) {
	f.Add([]byte("v1.2 2\ntxt 512 5 a.txt cls 1536 1 a.cls\ntxt 2560 6 b.txt\n"))
	f.Add([]byte("v1.2 1\ntxt 512 5 a.txt\n"))
	f.Add([]byte("v1.2 99999999999\ntxt 2560 6 b.txt txt 512 5 a.txt\n"))
	f.Fuzz(func(t *testing.T, index []byte) {
		name := onDisk(t, "x.tar", tarEntries("a.txt=first", "a.cls=1", "b.txt=second"))
		if err := os.WriteFile(strings.TrimSuffix(name, "tar")+"idx", index, 0o666); err != nil {
			t.Fatal(err)
		}
		for _, got := range indexed(t, name) {
			if !slices.Contains([]string{"a{txt:first cls:1}", "a{cls:1 txt:first}", "a{txt:first}", "a{cls:1}", "b{txt:second}"}, got) && !strings.HasPrefix(got, "error") {
				t.Fatalf("got %q", got)
			}
		}
	})
}

func TestTarWriter(t *testing.T) {
	var first, second bytes.Buffer
	w := NewTarWriter(&first)
	long := strings.Repeat("long/", 60) + "ü"
	records := []Record{
		{Key: "b", Files: []File{{"txt", []byte("1")}, {"cls", []byte("2")}}},
		{Key: "./d/a", Shard: "another", Files: []File{{"seg.png", bytes.Repeat([]byte("x"), 1000)}, {"__key__", nil}}},
		{Key: long, Files: []File{{"txt", nil}}},
		{Key: "__m__x", Files: []File{{"json", []byte("{}")}}},
	}
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	before := first.Len()
	for _, c := range []struct {
		r    Record
		says []string
	}{
		{Record{Key: "c"}, []string{`"c"`, "no files"}},
		{Record{Key: "b", Files: []File{{"txt", nil}}}, []string{`a record "b" already`}},
		{Record{Key: "", Files: []File{{"txt", nil}}}, []string{`file ".txt"`, "left out"}},
		{Record{Key: "d/", Files: []File{{"txt", nil}}}, []string{`file "d/.txt"`, "left out"}},
		{Record{Key: "c.x", Files: []File{{"txt", nil}}}, []string{`file "c.x.txt"`, `field "x.txt" of record "c"`}},
		{Record{Key: "d/.c", Files: []File{{"txt", nil}}}, []string{`file "d/.c.txt"`, "hidden"}},
		{Record{Key: "__c__/d", Files: []File{{"txt", nil}}}, []string{`file "__c__/d.txt"`, "__meta__"}},
		{Record{Key: "/c", Files: []File{{"txt", nil}}}, []string{`key "/c"`, "relative"}},
		{Record{Key: "d/../../c", Files: []File{{"txt", nil}}}, []string{`key "d/../../c"`, `".."`}},
		{Record{Key: "c\x00", Files: []File{{"txt", nil}}}, []string{`key "c\x00"`}},
		{Record{Key: "c", Files: []File{{"t\x00t", nil}}}, []string{`field "t\x00t"`}},
		{Record{Key: "c", Files: []File{{"", nil}}}, []string{`field ""`, "must not be empty"}},
		{Record{Key: "c", Files: []File{{"txt", nil}, {"TXT", nil}}}, []string{`file "c.TXT"`, `field "txt"`}},
		{Record{Key: "c", Files: []File{{"a/b", nil}}}, []string{`file "c.a/b"`, "without a dot"}},
		{Record{Key: "c", Files: []File{{"txt", nil}, {"cls", nil}, {"txt", nil}}}, []string{`"c"`, `"txt" twice`}},
	} {
		saysAll(t, w.Write(c.r), append(c.says, "TarWriter")...)
	}
	equal(t, "bytes that a bad record has written", first.Len()-before, 0)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	saysAll(t, w.Write(Record{Key: "e", Files: []File{{"txt", nil}}}), "TarWriter", "after close")

	w = NewTarWriter(&second)
	for _, r := range records {
		slices.Reverse(r.Files)
		w.Write(r)
	}
	w.Close()
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same records make other bytes")
	}
	want := []string{"b{cls:2 txt:1}", brief(Record{Key: "./d/a", Files: []File{{"__key__", nil}, {"seg.png", bytes.Repeat([]byte("x"), 1000)}}}), long + "{txt:}", "__m__x{json:{}}"}
	equal(t, "read back", tarOutcomes(t, TarOptions{}, first.Bytes()), want)
	h := must(tar.NewReader(&first).Next())
	equal(t, "a header", fmt.Sprintf("%s %o %d %q %d %s", h.Name, h.Mode, h.Uid, h.Uname, h.ModTime.Unix(), h.Format), `b.cls 444 0 "" 0 USTAR`)

	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	w = NewTarWriter(z)
	for _, r := range records {
		w.Write(r)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	equal(t, "read back from gzip", tarOutcomes(t, TarOptions{}, zipped.Bytes()), want)

	w = NewTarWriter(&failingWriter{1000})
	var err error
	for i := 0; err == nil && i < 10; i++ {
		err = w.Write(Record{Key: strconv.Itoa(i), Files: []File{{"txt", nil}}})
	}
	saysAll(t, err, "TarWriter", `record "1"`, "bad sample")
	saysAll(t, w.Close(), "TarWriter", "bad sample")
}

// A failingWriter takes n bytes.
type failingWriter struct{ n int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, errBad
	}
	return len(p), nil
}

// TestTarNames reads and indexes a shard whose entries would like to be written elsewhere, and opens names that other
// libraries would execute. Nothing but the index is written.
func TestTarNames(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "in", "x.tar")
	os.Mkdir(filepath.Dir(name), 0o777)
	data := tarEntries("../../evil.txt=1", "/etc/evil.txt=2", "../evil.txt@/etc/passwd", "d/../../evil.idx=3")
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
	want := "[../../evil{txt:1} /etc/evil{txt:2} d/../../evil{idx:3}]"
	equal(t, "streamed", outcomes(briefly(must(Tar([]string{name}, TarOptions{}))).Epoch(t.Context(), 0)), want)
	d := must(OpenTar(name))
	defer d.Close()
	if err := d.WriteIndex(); err != nil {
		t.Fatal(err)
	}
	equal(t, "indexed", indexed(t, name), want)
	for _, command := range []string{"pipe:touch " + dir + "/evil", "|touch " + dir + "/evil", "file://" + name, "-"} {
		if _, err := Open(t.Context(), command, 0); err == nil {
			t.Errorf("%s was opened", command)
		}
	}
	var found []string
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			found = append(found, filepath.Base(path))
		}
		return err
	})
	equal(t, "files", found, "[x.idx x.tar]")
}

// TestExpand has what bash makes of each pattern, but for braces that are not paired.
func TestExpand(t *testing.T) {
	for _, c := range []struct{ pattern, want string }{
		{"train.tar", "train.tar"}, {"", ""},
		{"train-{000..003}.tar", "train-000.tar train-001.tar train-002.tar train-003.tar"},
		{"{8..11}", "8 9 10 11"}, {"{08..11}", "08 09 10 11"}, {"{001..3}", "001 002 003"}, {"{1..03}", "01 02 03"},
		{"{0..10..5}", "0 5 10"}, {"{0..10..-5}", "0 5 10"}, {"{0..3..0}", "0 1 2 3"}, {"{0..9..4}", "0 4 8"},
		{"{3..0}", "3 2 1 0"}, {"{10..0..4}", "10 6 2"}, {"{-1..1}", "-1 0 1"}, {"{-01..1}", "-01 000 001"},
		{"{a..c..2}", "a c"}, {"{x..z}", "x y z"}, {"{Z..X}", "Z Y X"}, {"{X..[}", "{X..[}"}, {"{c..a}", "c b a"}, {"{a,b}{1,2}", "a1 a2 b1 b2"}, {"a{b,c{1..2}}", "ab ac1 ac2"},
		{"{a}", "{a}"}, {"{}", "{}"}, {"x{{a,b}}y", "x{a}y x{b}y"}, {"{,x}", " x"}, {"{1,2,}", "1 2 "}, {"{1..2}{a}", "1{a} 2{a}"},
		{"{a..3}", "{a..3}"}, {"{1..{2,3}}", "{1..2} {1..3}"}, {"{1...3}", "{1...3}"}, {"{1..3..x}", "{1..3..x}"}, {"{1..2..3..4}", "{1..2..3..4}"},
		{"p{a,{b,c}d,}s", "pas pbds pcds ps"}, {`a\{b\,c\}`, "a{b,c}"}, {`{a\,b,c}`, "a,b c"}, {`a\\{1,2}`, `a\1 a\2`}, {`a\`, `a\`},
		{"{9223372036854775806..9223372036854775807}", "9223372036854775806 9223372036854775807"},
		{"{-9223372036854775807..-9223372036854775808}", "-9223372036854775807 -9223372036854775808"},
		{"{1..9223372036854775807..9223372036854775806}", "1 9223372036854775807"},
		{"{0..1..-9223372036854775808}", "0"}, {"{1..99999999999999999999}", "{1..99999999999999999999}"},
	} {
		got, err := Expand(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, c.pattern, strings.Join(got, " "), c.want)
	}
	for pattern, says := range map[string]string{
		"a{b": "a { has no }", "a}b": "a } has no {", "{a,b}}": "a } has no {", "{{a,b}": "a { has no }", "x{a,b}{": "a { has no }",
		"{1..9223372036854775807}":             "more than 1048576 names",
		"{0..1048576}":                         "more than 1048576 names",
		"{-9223372036854775808..0}":            "more than 1048576 names",
		"{1..1024}{1..1024}{1..2}":             "more than 1048576 names",
		"{{1..1000000},{1..1000000}}":          "more than 1048576 names",
		strings.Repeat("{0,1,2,3,4,5,6,7}", 7): "more than 1048576 names",
	} {
		_, err := Expand(pattern)
		saysAll(t, err, "Expand", says)
	}
	equal(t, "as many as there may be", len(must(Expand("{1..1024}{1..1024}"))), 1<<20)
}

func TestDecode(t *testing.T) {
	var img bytes.Buffer
	must(0, png.Encode(&img, image.NewGray(image.Rect(0, 0, 3, 2))))
	for _, c := range []struct {
		name, data string
		want       string
	}{
		{"png", img.String(), "*image.Gray (0,0)-(3,2)"}, {"d.x/a.seg.PNG", img.String(), "*image.Gray (0,0)-(3,2)"}, {"jpg", img.String(), "*image.Gray (0,0)-(3,2)"},
		{"json", `{"a":[1,null]}`, "map[string]interface {} map[a:[1 <nil>]]"}, {"txt", "text", "string text"}, {"a.transcript", "text", "string text"},
		{"cls", " 12\n", "int 12"}, {"count", "-1", "int -1"}, {"bin", "12", "[]uint8 [49 50]"}, {"README", "x", "[]uint8 [120]"}, {"", "x", "[]uint8 [120]"}, {"txt.gz", "x", "[]uint8 [120]"},
	} {
		v, err := Decode(c.name, []byte(c.data))
		got := fmt.Sprintf("%T %v", v, v)
		if img, ok := v.(image.Image); ok {
			got = fmt.Sprintf("%T %v", v, img.Bounds())
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %s and %v, want %s", c.name, got, err, c.want)
		}
	}
	for name, data := range map[string]string{"a.png": "no image", "json": "{", "cls": "one", "gif": ""} {
		v, err := Decode(name, []byte(data))
		if saysAll(t, err, "Decode", name); v != nil {
			t.Errorf("%s: %v in spite of the error", name, v)
		}
	}
}

// TestTarStages has webdataset's loaders as compositions: a field that is missing, records that cannot be decoded, epochs of
// another length.
func TestTarStages(t *testing.T) {
	var entries []string
	for i := range 47 {
		entries = append(entries, fmt.Sprintf("%02d.cls=%d", i, i))
		if i%2 == 0 {
			entries = append(entries, fmt.Sprintf("%02d.png=x", i))
		}
	}
	stream := must(Tar([]string{"x"}, TarOptions{Open: inMemory(map[string][]byte{"x": gzipped(tarEntries(entries...))})}))
	good := 0
	for _, err := range Map(stream, 3, func(_ context.Context, r Record) (int, error) {
		if r.Get("png") == nil {
			return 0, errors.New("no png")
		}
		return strconv.Atoi(string(r.Get("cls")))
	}).Epoch(t.Context(), 0) {
		if err == nil {
			good++
		}
	}
	equal(t, "with a png", good, 24)
	count := func(s Stream[Record]) int { return len(collect(t, s.Epoch(t.Context(), 0))) }
	equal(t, "twice", count(stream.Repeat(2)), 94)
	equal(t, "193", count(stream.Repeat(0).Take(193)), 193)
	equal(t, "10", count(stream.Take(10)), 10)
	equal(t, "batches of 3", len(collect(t, Batch(stream, 3, List[Record]).Epoch(t.Context(), 0))), 16)
	ranks := 0
	for i := range 4 {
		ranks += count(stream.Shard(Shard{i, 4}))
	}
	equal(t, "one shard on 4 ranks", ranks, 47)
}

// TestStats compares every figure with that of a schedule worked out by hand. Each batch has a sample or two, of which
// the comment says how long it takes, and the loop takes step for a batch.
func TestStats(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		opts Options
		n    int
		load func(i int) time.Duration
		step time.Duration
		want string
	}{
		// Batches are ready in pairs, at 100, 200, …; every other one is waited for, for 40.
		{"loader", Options{BatchSize: 2, Workers: 2}, 40, func(int) time.Duration { return 50 * ms }, 30 * ms,
			"20 batches, 40 samples (39/s), 0 dropped; waited 45 % of 1.03s, 0 % with later batches ready; workers: 2, 97 % busy: the loader is the bottleneck, workers needed: 4"},
		{"loader alone", Options{}, 10, func(int) time.Duration { return 100 * ms }, 30 * ms,
			"10 batches, 10 samples (8/s), 0 dropped; waited 79 % of 1.27s, 0 % with later batches ready: the loader is the bottleneck, workers needed: 4"},
		{"no training", Options{Workers: 1}, 10, func(int) time.Duration { return 100 * ms }, 0,
			"10 batches, 10 samples (10/s), 0 dropped; waited 100 % of 1s, 0 % with later batches ready; workers: 1, 100 % busy: the loader is the bottleneck, the loop takes no time of its own"},
		// Only the first batch is waited for.
		{"many", Options{Workers: 1}, 11, func(int) time.Duration { return 100 * ms }, 10 * ms,
			"11 batches, 11 samples (10/s), 0 dropped; waited 91 % of 1.1s, 0 % with later batches ready; workers: 1, 100 % busy: the loader is the bottleneck, workers needed: 10, if they wait rather than compute, for which there are 8 CPUs"},
		{"training", Options{Workers: 4}, 20, func(int) time.Duration { return 20 * ms }, 100 * ms,
			"20 batches, 20 samples (10/s), 0 dropped; waited 1 % of 1.92s, 0 % with later batches ready; workers: 4, 5 % busy: the training is the bottleneck, workers needed: 1"},
		{"training alone", Options{}, 20, func(int) time.Duration { return 1 * ms }, 100 * ms,
			"20 batches, 20 samples (10/s), 0 dropped; waited 1 % of 1.92s, 0 % with later batches ready: the training is the bottleneck, workers needed: 0"},
		// From 50 to 210 the loop waits for batch 2, behind which 3 to 5 are ready.
		{"slow batch", Options{Workers: 2}, 12, func(i int) time.Duration {
			if i == 2 {
				return 200 * ms
			}
			return 10 * ms
		}, 20 * ms,
			"12 batches, 12 samples (31/s), 0 dropped; waited 44 % of 390ms, 41 % with later batches ready; workers: 2, 40 % busy: slow batches hold up those behind them, raise Prefetch or set Unordered"},
		// The same out of order: the others come meanwhile, each 20 after the one before, and the slow one as the last but one.
		{"slow batch out of order", Options{Workers: 2, Unordered: true}, 12, func(i int) time.Duration {
			if i == 2 {
				return 200 * ms
			}
			return 10 * ms
		}, 20 * ms,
			"12 batches, 12 samples (52/s), 0 dropped; waited 4 % of 230ms, 0 % with later batches ready; workers: 2, 67 % busy: the training is the bottleneck, workers needed: 2"},
		// Batches 0, 4, 8, … take 60, the others 10: 30 on the average of 30 that two workers need.
		{"uneven", Options{Workers: 1, Prefetch: 1}, 9, func(i int) time.Duration {
			if i%4 == 0 {
				return 60 * ms
			}
			return 10 * ms
		}, 30 * ms,
			"9 batches, 9 samples (25/s), 0 dropped; waited 33 % of 360ms, 0 % with later batches ready; workers: 1, 67 % busy: the loader keeps up on average but not always, raise Prefetch"},
		{"bad samples", Options{BatchSize: 2, OnError: func(*SampleError) error { return nil }}, 20, func(i int) time.Duration {
			if i < 5 {
				return -1
			}
			return 50 * ms
		}, 30 * ms,
			"10 batches, 15 samples (16/s), 5 dropped; waited 78 % of 960ms, 0 % with later batches ready: the loader is the bottleneck, workers needed: 4"},
		// Batch 0 comes at 100, and batch 1, which waits for it, is ready at 60.
		{"first batch slow", Options{Workers: 2}, 4, func(i int) time.Duration { return []time.Duration{100, 60, 10, 10}[i] * ms }, 10 * ms,
			"4 batches, 4 samples (31/s), 0 dropped; waited 77 % of 130ms, 31 % with later batches ready; workers: 2, 69 % busy: a few batches are so slow that the loop waits for them while workers are idle"},
		{"two batches", Options{}, 2, func(int) time.Duration { return 10 * ms }, 10 * ms,
			"2 batches, 2 samples (67/s), 0 dropped; waited 67 % of 30ms, 0 % with later batches ready: loading and training take turns, a worker would load meanwhile"},
		{"one batch", Options{}, 1, func(i int) time.Duration { return ms }, ms, "too few batches to say anything: 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stats := new(Stats)
				c.opts.Trace = stats.Observe
				loader := newLoader(t, Func(c.n, func(_ context.Context, i int) (int, error) {
					d := c.load(i)
					time.Sleep(d)
					if d < 0 {
						return 0, errBad
					}
					return i, nil
				}), c.opts)
				for range loader.Epoch(t.Context(), 0) {
					time.Sleep(c.step)
				}
				equal(t, "Stats", stats, c.want)
			})
		})
	}
	// What happens between loops is neither waiting nor training.
	synctest.Test(t, func(t *testing.T) {
		stats := new(Stats)
		loader := newLoader(t, Func(20, func(_ context.Context, i int) (int, error) {
			time.Sleep(60 * ms)
			return i, nil
		}), Options{Workers: 1, Trace: stats.Observe})
		for epoch := range 3 {
			for range loader.Epoch(t.Context(), epoch) {
				time.Sleep(30 * ms)
			}
			time.Sleep(10 * time.Second) // evaluation
		}
		equal(t, "three epochs", stats, "60 batches, 60 samples (17/s), 0 dropped; waited 52 % of 3.6s, 0 % with later batches ready; workers: 1, 100 % busy: the loader is the bottleneck, workers needed: 2")
	})
	// Short loops wait for their first batch, whatever Prefetch is.
	synctest.Test(t, func(t *testing.T) {
		stats := new(Stats)
		loader := newLoader(t, double10ms(5), Options{Workers: 4, Trace: stats.Observe})
		for epoch := range 10 {
			for range loader.Epoch(t.Context(), epoch) {
				time.Sleep(10 * ms)
			}
		}
		saysAll(t, errors.New(stats.String()), "50 batches", "waited 20 %", "the loader keeps up, but for the first batch of a loop; loops: 10")
	})
	// Batches of another length each do stand before others that are ready, but it is workers that are missing.
	synctest.Test(t, func(t *testing.T) {
		stats := new(Stats)
		loader := newLoader(t, Func(200, func(_ context.Context, i int) (int, error) {
			time.Sleep(50*ms + time.Duration(below(100, 1, uint64(i)))*ms)
			return i, nil
		}), Options{Workers: 4, Trace: stats.Observe})
		for range loader.Epoch(t.Context(), 0) {
			time.Sleep(20 * ms)
		}
		saysAll(t, errors.New(stats.String()), "200 batches", "the loader is the bottleneck, workers needed: 5")
	})
	// What was waited for in one epoch is over in the next.
	synctest.Test(t, func(t *testing.T) {
		stats := new(Stats)
		loader := newLoader(t, double10ms(4), Options{Workers: 2, Trace: stats.Observe})
		for epoch := range 50 {
			for range loader.Epoch(t.Context(), epoch) {
			}
		}
		if len(stats.waits) > 4 {
			t.Errorf("%d waits are kept", len(stats.waits))
		}
		saysAll(t, errors.New(stats.String()), "200 batches", "waited 100 % of 1s", " 0 % with later")
	})
}

// double10ms is a data set of which each sample takes 10 ms.
func double10ms(n int) Dataset[int] {
	return Func(n, func(_ context.Context, i int) (int, error) {
		time.Sleep(10 * time.Millisecond)
		return i, nil
	})
}

func TestProgress(t *testing.T) {
	run := func(total, n int, terminal bool, wait, body time.Duration, leave int) (shown string) {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			seq := func(yield func(int, error) bool) {
				for i := range n {
					time.Sleep(wait)
					var err error
					if i == 1 {
						err = errBad
					}
					if !yield(i, err) {
						return
					}
				}
			}
			k := 0
			for i, err := range progress(&out, total, terminal, seq) {
				if i != k || (err != nil) != (i == 1) || err != nil && err != errBad {
					t.Fatalf("item %d: %d, %v", k, i, err)
				}
				if k++; k == leave {
					break
				}
				time.Sleep(body)
			}
			time.Sleep(time.Hour)
			shown = out.String()
		})
		return shown
	}
	const s = time.Second
	bar := func(done int) string { return "[" + strings.Repeat("#", done) + strings.Repeat(".", 12-done) + "]" }
	// frames are what is to be seen on a terminal, one after the other: each covers the one before.
	frames := func(shown string) (all []string) {
		last := 0
		for _, frame := range strings.Split(strings.TrimPrefix(strings.TrimSuffix(shown, "\n"), "\r"), "\r") {
			if len(frame) < last || len(frame) > 79 {
				t.Errorf("%q has %d columns, after %d", frame, len(frame), last)
			}
			frame = strings.TrimRight(frame, " ")
			all, last = append(all, frame), len(frame)
		}
		return all
	}
	equal(t, "a bar", strings.Join(frames(run(4, 4, true, s/4, 3*s/4, 0)), "\n"), "1/4  25% "+bar(3)+" 1/s, 1s, 3s left, waited 25%\n"+
		"2/4  50% "+bar(6)+" 1/s, 2s, 2s left, waited 25%\n"+
		"3/4  75% "+bar(9)+" 1/s, 3s, 1s left, waited 25%\n"+
		"4/4 100% "+bar(12)+" 1/s, 4s, waited 25%\n"+
		"4/4 100% "+bar(12)+" 1/s, 4s, waited 25%")
	frames(run(99999, 20, true, 10*time.Minute, 50*time.Minute, 0))
	equal(t, "lines", run(25, 25, false, s, 0, 0), "10/25  40% 1/s, 10s, 15s left, waited 100%\n20/25  80% 1/s, 20s, 5s left, waited 100%\n25/25 100% 1/s, 25s, waited 100%\n")
	equal(t, "unknown", run(0, 15, false, 0, 2*s, 0), "5 0.5/s, 10s, waited 0%\n10 0.5/s, 20s, waited 0%\n15 0.5/s, 30s, waited 0%\n15 0.5/s, 30s, waited 0%\n")
	equal(t, "more than promised", run(2, 3, false, s, 0, 0), "3/2 100% 1/s, 3s, waited 100%\n")
	equal(t, "nothing", run(2, 0, false, s, 0, 0), "0/2   0% 0/s, 0s, waited 0%\n")
	equal(t, "a break", strings.Join(frames(run(100, 100, true, s/4, s/4, 2)), "\n"), "1/100   1% "+bar(0)+" 2/s, 500ms, 49.5s left, waited 50%\n2/100   2% "+bar(0)+" 2.67/s, 800ms, 36.8s left, waited 67%")
	equal(t, "fast and long", run(1<<62, 1000, false, 0, time.Microsecond, 0), "1000/4611686018427387904   0% 1000000/s, 0s, 1281023h53m38.4s left, waited 0%\n")
	if n := strings.Count(run(0, 10000, true, time.Millisecond, 0, 0), "\r"); n != 101 {
		t.Errorf("drawn %d times in 10 s", n)
	}
	if isTerminal(io.Discard) || isTerminal(must(os.Open("README.md"))) {
		t.Error("a file is no terminal")
	}
	if runtime.GOOS == "linux" && !isTerminal(must(os.Open(os.DevNull))) {
		t.Error("a device that is written to character by character counts as one")
	}
	synctest.Test(t, func(t *testing.T) { // waiting for an end is waiting too
		var out strings.Builder
		for range progress(&out, 0, false, func(yield func(int, error) bool) {
			if yield(1, nil) {
				time.Sleep(9 * time.Second)
			}
		}) {
			time.Sleep(time.Second)
		}
		equal(t, "a slow end", out.String(), "1 0.1/s, 10s, waited 90%\n")
	})
	var out strings.Builder
	equal(t, "values", collect(t, Progress(&out, 3, Stream[int].Epoch(counting(3), t.Context(), 0))), "[0 1 2]")
	if !strings.HasPrefix(out.String(), "3/3 100%") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%q", out.String())
	}
}

// TestProfiles looks into profiles as the tools show them: who a goroutine is, and what a batch was made of.
func TestProfiles(t *testing.T) {
	var out bytes.Buffer
	running := trace.Start(&out) == nil // else somebody traces this test already
	labels := make(chan string, 100)
	loader := newLoader(t, Func(4, func(ctx context.Context, i int) (int, error) {
		label, _ := pprof.Label(ctx, "dataloader")
		labels <- label
		var goroutines bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&goroutines, 1)
		if want := fmt.Sprintf(`"dataloader":"worker %d"`, Worker(ctx)); label != fmt.Sprintf("worker %d", Worker(ctx)) || !strings.Contains(goroutines.String(), want) {
			t.Errorf("label %q; no %s among the goroutines", label, want)
		}
		trace.Log(ctx, "in the batch's task", "")
		if n := strings.Count(fmt.Sprint(ctx), "traceContextKey"); running && n != 1 {
			t.Errorf("the context of a sample is in %d tasks", n)
		}
		return i, nil
	}), Options{Workers: 2, BatchSize: 1})
	collect(t, loader.Epoch(t.Context(), 0))
	source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] {
		label, _ := pprof.Label(ctx, "dataloader")
		labels <- label
		return one(1, nil)
	})
	collect(t, source.Prefetch(2).Epoch(t.Context(), 0))
	collect(t, Map(source, 1, quick).Epoch(t.Context(), 0))
	close(labels)
	seen := map[string]bool{}
	for label := range labels {
		seen[label] = true
	}
	if !seen["prefetch"] || !seen["reader"] {
		t.Errorf("labels %v", seen)
	}
	if running {
		trace.Stop()
		for _, name := range []string{"batch", "epoch 0, batch 1", "fetch", "collate", "in the batch's task"} {
			if !bytes.Contains(out.Bytes(), []byte(name)) {
				t.Errorf("the trace has no %q", name)
			}
		}
	}
}

// goldenFile compares data with a file of testdata, which -update rewrites.
func goldenFile(t testing.TB, name string, data []byte) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, want) {
		t.Errorf("%s is not what it was; go test -update writes it", name)
	}
}

// TestTimeline draws what three loaders do with the same twelve batches, of which the third is slow, from their Timings in fake
// time: as text, and as the picture of the README. A column is 10 ms.
func TestTimeline(t *testing.T) {
	const column = 10 * time.Millisecond
	load := func(k int) time.Duration {
		d := time.Duration(4+k%2) * column
		if k == 2 {
			d = 19 * column
		}
		return d + time.Duration(1+k*k)*10*time.Microsecond // so that no two are ready at the same moment
	}
	var text strings.Builder
	var pic svg
	for _, c := range []struct {
		title, ready string
		opts         Options
	}{
		{"one worker", "queue", Options{Workers: 1}},
		{"three workers, out of order", "queue", Options{Workers: 3, Unordered: true}},
		{"three workers, in order", "cache", Options{Workers: 3}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var timings []Timing
			c.opts.Trace = func(tm Timing) { timings = append(timings, tm) }
			loader := newLoader(t, Func(12, func(_ context.Context, k int) (int, error) {
				time.Sleep(load(k))
				return k, nil
			}), c.opts)
			start := time.Now()
			for range loader.Epoch(t.Context(), 0) {
				time.Sleep(column)
			}
			at := func(x time.Time) int { return int(x.Sub(start) / column) }
			last := at(timings[11].Received) + 1
			// Which of the workers that are free at the same moment takes a task is up to the scheduler; here, the first.
			var loading, waiting, training []bar
			for _, tm := range timings {
				loading = append(loading, bar{tm.Batch, at(tm.Start), at(tm.Done)})
				waiting = append(waiting, bar{tm.Batch, at(tm.Done), at(tm.Received)})
				training = append(training, bar{tm.Batch, at(tm.Received), at(tm.Received) + 1})
			}
			var lanes []lane
			for w, row := range rows(loading) {
				lanes = append(lanes, lane{fmt.Sprintf("worker %d", w), "load", row})
			}
			for _, row := range rows(waiting) {
				lanes = append(lanes, lane{c.ready, "wait", row})
			}
			lanes = append(lanes, lane{"caller", "train", training})
			fmt.Fprintf(&text, "%s: %d ms, %d ms of them waiting\n", c.title, 10*last, 10*(last-12))
			for _, l := range lanes {
				line := []byte(strings.Repeat(".", last))
				for _, b := range l.bars {
					copy(line[b.from:], strings.Repeat(strconv.FormatInt(int64(b.batch), 12), b.to-b.from))
				}
				fmt.Fprintf(&text, "%-9s %s\n", l.name, line)
			}
			text.WriteByte('\n')
			pic.panel(c.title, last, lanes)
		})
	}
	goldenFile(t, "timeline.txt", []byte(text.String()))
	goldenFile(t, "timeline.svg", pic.bytes("What three loaders do with the same twelve batches, of which batch 2 is slow"))
}

// A bar is what happens to a batch from one column to another, and a lane what happens in one place.
type bar struct{ batch, from, to int }

type lane struct {
	name, kind string
	bars       []bar
}

// rows puts bars into as few rows as there are at most at once, each into the first that is free.
func rows(bars []bar) (rows [][]bar) {
	slices.SortFunc(bars, func(a, b bar) int { return cmp.Or(a.from-b.from, a.batch-b.batch) })
	for _, b := range bars {
		if b.from == b.to {
			continue
		}
		free := slices.IndexFunc(rows, func(row []bar) bool { return row[len(row)-1].to <= b.from })
		if free < 0 {
			free = len(rows)
			rows = append(rows, nil)
		}
		rows[free] = append(rows[free], b)
	}
	return rows
}

// An svg is a picture that is written from top to bottom. Its colours have a light and a dark form.
type svg struct {
	body   strings.Builder
	height int
}

const svgWidth = 760

func (p *svg) add(format string, args ...any) { fmt.Fprintf(&p.body, format+"\n", args...) }

// panel draws lanes, with the time below them.
func (p *svg) panel(title string, last int, lanes []lane) {
	const left, column, row = 74, 9, 20
	p.height += 24
	p.add(`<text class="title" x="8" y="%d">%s: %d ms</text>`, p.height, title, 10*last)
	p.height += 8
	top := p.height
	for x := 0; x <= last; x += 10 {
		p.add(`<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`, left+x*column, top, left+x*column, top+row*len(lanes)+4)
		p.add(`<text class="time" x="%d" y="%d">%d</text>`, left+x*column, top+row*len(lanes)+16, 10*x)
	}
	for _, l := range lanes {
		p.add(`<text x="8" y="%d">%s</text>`, p.height+14, l.name)
		for _, b := range l.bars {
			kind := l.kind
			if b.batch == 2 {
				kind += " slow"
			}
			width := (b.to-b.from)*column - 1
			if b.batch > 9 && width < 12 {
				kind += " small"
			}
			p.add(`<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="2"/>`, kind, left+b.from*column, p.height+2, width, row-4)
			p.add(`<text class="batch %s" x="%d.5" y="%d">%d</text>`, kind, left+b.from*column+width/2, p.height+14, b.batch)
		}
		p.height += row
	}
	p.height += 24
}

// bytes ends the picture.
func (p *svg) bytes(title string) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">
<title>%s</title>
<style>
svg { background: #ffffff; }
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.time, .batch { text-anchor: middle; font-size: 10px; }
.batch.small { font-size: 7px; }
.time { fill: #59636e; }
.grid { stroke: #d1d9e0; }
.load { fill: #2a78d6; }
.wait { fill: #b9d3f2; }
.train { fill: #5d6670; }
.slow { fill: #c2571a; }
.wait.slow { fill: #f0c3a5; }
.ideal { stroke: #59636e; stroke-dasharray: 4 4; fill: none; }
.line { stroke: #2a78d6; stroke-width: 2; fill: none; }
.line.slow { stroke: #c2571a; }
.batch.load, .batch.train, .batch.slow { fill: #ffffff; }
.batch.wait { fill: #1f2328; }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; }
text { fill: #e6edf3; }
.time { fill: #9198a1; }
.grid { stroke: #30363d; }
.wait { fill: #1c3d66; }
.train { fill: #8b949e; }
.wait.slow { fill: #5c2e12; }
.ideal { stroke: #9198a1; }
.line { stroke: #58a6ff; }
.line.slow { stroke: #f0883e; }
.batch.wait { fill: #e6edf3; }
.batch.train { fill: #0d1117; }
}
</style>
%s</svg>
`, svgWidth, p.height, title, p.body.String())
}

// A data set, a loader and the training loop, with a checkpoint in every step.
func Example() {
	squares := Func(10, func(ctx context.Context, i int) (float64, error) {
		return float64(i * i), nil // open, read, decode
	})
	loader, err := New(squares, List[float64], Options{BatchSize: 4, Shuffle: true, Seed: 1, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	var at Cursor
	for at.Epoch < 2 {
		for batch, err := range loader.Run(context.Background(), &at) {
			if err != nil {
				fmt.Println(err)
				return
			}
			checkpoint, _ := json.Marshal(at)
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

// The classic loader's first stage: one goroutine, the caller's, which loads a batch when the loop asks for it.
func ExampleNew_oneProcess() {
	features := make(Slice[Tensor[float32]], 20)
	for i := range features {
		features[i] = Tensor[float32]{Data: make([]float32, 100), Shape: []int{100}}
	}
	labels := Func(20, func(ctx context.Context, i int) (int, error) { return i % 3, nil })
	data, err := Pairs(features, labels)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, CollatePair(Stack[float32], List[int]), Options{BatchSize: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(loader.Len(), "batches")
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.First.Shape, batch.Second, err)
	}
	// Output:
	// 3 batches
	// [8 100] [0 1 2 0 1 2 0 1] <nil>
	// [8 100] [2 0 1 2 0 1 2 0] <nil>
	// [4 100] [1 2 0 1] <nil>
}

// The second stage: workers, whose batches are handed over as they are ready. A slow one comes last.
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
		fmt.Println(err)
		return
	}
	got := 0
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Print(batch)
		if got++; got == 5 {
			close(others)
		}
	}
	// Output: [1][2][3][4][5][0]
}

// The third stage: the batches are loaded in any order, and handed over in theirs.
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
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Print(batch)
	}
	// Output: [0][1][2][3][4][5]
}

// PyTorch's loader starts over in each new loop; an iterator goes on where the last loop left off. Here the loop
// says which: Epoch starts over, Run goes on from its cursor.
func ExampleStream_Run_restartOrContinue() {
	loader, err := New(Slice[string]{"a", "b", "c", "d"}, List[string], Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 2 {
		for batch := range loader.Epoch(ctx, 0) {
			fmt.Print(batch)
			if batch[0] == "b" {
				break
			}
		}
	}
	fmt.Println(" starts over")

	var at Cursor
	for range 2 {
		for batch := range loader.Run(ctx, &at) {
			fmt.Print(batch)
			if batch[0] == "b" {
				break
			}
		}
	}
	fmt.Println(" goes on; next is epoch", at.Epoch)
	// Output:
	// [a][b][a][b] starts over
	// [a][b][c][d] goes on; next is epoch 1
}

// Saved as JSON, a cursor resumes another process: with other numbers of workers, and of ranks.
func ExampleCursor() {
	data := Func(24, func(ctx context.Context, i int) (int, error) { return i, nil })
	load := func(rank, ranks, batchSize int, checkpoint []byte, batches int) []byte {
		loader, err := New(data, List[int], Options{BatchSize: batchSize, Workers: ranks, Shard: Shard{Index: rank, Count: ranks}})
		if err != nil {
			fmt.Println(err)
			return nil
		}
		var at Cursor
		if err := json.Unmarshal(checkpoint, &at); err != nil {
			fmt.Println(err)
			return nil
		}
		fmt.Print("rank ", rank, " of ", ranks, ":")
		for batch := range loader.Run(context.Background(), &at) {
			fmt.Print(" ", batch)
			if batches--; batches == 0 {
				break
			}
		}
		fmt.Println()
		checkpoint, _ = json.Marshal(at)
		return checkpoint
	}
	load(0, 2, 4, []byte("{}"), 1)
	saved := load(1, 2, 4, []byte("{}"), 1) // every rank's checkpoint is the same
	fmt.Println(string(saved))
	load(0, 1, 8, saved, 1) // 1 rank with batches of 8 instead of 2 with batches of 4
	for rank := range 4 {   // or 4 with batches of 2
		load(rank, 4, 2, saved, 1)
	}
	// Output:
	// rank 0 of 2: [0 2 4 6]
	// rank 1 of 2: [1 3 5 7]
	// {"epoch":0,"pos":8,"state":{"by":"Sequential(24)"}}
	// rank 0 of 1: [8 9 10 11 12 13 14 15]
	// rank 0 of 4: [8 12]
	// rank 1 of 4: [9 13]
	// rank 2 of 4: [10 14]
	// rank 3 of 4: [11 15]
}

// A stream of one's own keeps what it needs in the cursor's State and loads it from there.
func ExampleCursor_Load() {
	type state struct{ Line int64 }
	at := Cursor{Epoch: 2, Pos: 100, State: state{Line: 1 << 60}}
	saved, _ := json.Marshal(at)
	var back Cursor
	if err := json.Unmarshal(saved, &back); err != nil {
		fmt.Println(err)
		return
	}
	var s state
	fmt.Println(back.Load(&s), s.Line == 1<<60)
	// Output: <nil> true
}

// The rows of an arena loader. Features are one array of all samples, and a batch is a copy of some of its rows.
// Without labels there is no Pair, and nothing else changes.
func ExampleRows() {
	features := Tensor[float32]{Data: []float32{0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, Shape: []int{5, 2}}
	data, err := Rows(features)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println("size", batch.Shape[0], "shape", batch.Shape, "dimensions", len(batch.Shape), batch.Data)
	}
	// Output:
	// size 2 shape [2 2] dimensions 2 [0 0 1 1]
	// size 2 shape [2 2] dimensions 2 [2 2 3 3]
	// size 1 shape [1 2] dimensions 2 [4 4]
}

// With labels, which are a second array.
func ExamplePairs() {
	features, err1 := Rows(Tensor[float32]{Data: []float32{0, 0, 1, 1, 2, 2}, Shape: []int{3, 2}})
	labels, err2 := Rows(Tensor[int64]{Data: []int64{7, 8, 9}, Shape: []int{3}})
	data, err3 := Pairs(features, labels)
	loader, err4 := New(data, CollatePair(Stack[float32], Stack[int64]), Options{BatchSize: 3})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.First.Shape, batch.First.Data, batch.Second.Shape, batch.Second.Data)
	}
	_, err := Pairs(features, Slice[int]{1, 2})
	fmt.Println(err)
	// Output:
	// [3 2] [0 0 1 1 2 2] [3] [7 8 9]
	// dataloader: Pairs: the first data set has 3 samples, the second 2; they must be equal
}

// An evaluation fetches batches by index while a training loop is under way, and does not disturb it.
func ExampleDataLoader_Batch() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for batch := range loader.Epoch(ctx, 0) {
		last, err := loader.Batch(ctx, 0, loader.Len()-1)
		fmt.Println("train", batch, "evaluate", last, err)
	}
	// Output:
	// train [0 1] evaluate [4 5] <nil>
	// train [2 3] evaluate [4 5] <nil>
	// train [4 5] evaluate [4 5] <nil>
}

// The same epoch has the same order again, the next a new one: there is nothing to reset.
func ExampleDataLoader_Epoch() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5}, List[int], Options{BatchSize: 6, Shuffle: true, Seed: 42})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, epoch := range []int{0, 0, 1} {
		for batch := range loader.Epoch(context.Background(), epoch) {
			fmt.Println("epoch", epoch, batch)
		}
	}
	// Output:
	// epoch 0 [5 4 0 2 3 1]
	// epoch 0 [5 4 0 2 3 1]
	// epoch 1 [1 2 0 4 3 5]
}

// The cursor says which batch is next, and so which one is current.
func ExampleDataLoader_Run() {
	const batchSize = 2
	loader, err := New(Slice[string]{"a", "b", "c", "d", "e"}, List[string], Options{BatchSize: batchSize})
	if err != nil {
		fmt.Println(err)
		return
	}
	var at Cursor
	for batch := range loader.Run(context.Background(), &at) {
		fmt.Println("epoch", at.Epoch, "batch", (at.Pos-1)/batchSize, "of", loader.Len(), batch)
	}
	// Output:
	// epoch 0 batch 0 of 3 [a b]
	// epoch 0 batch 1 of 3 [c d]
	// epoch 0 batch 2 of 3 [e]
}

// Recycle gives a batch's memory back after the step, as an arena does when it is popped. Here two pieces of memory
// serve all batches.
func ExampleDataLoader_Recycle() {
	data, err := Rows(Tensor[float32]{Data: make([]float32, 1000*784), Shape: []int{1000, 784}})
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 50})
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := map[*float32]bool{}
	for batch := range loader.Epoch(context.Background(), 0) {
		memory[&batch.Data[0]] = true
		loader.Recycle(batch)
	}
	fmt.Println(loader.Len(), "batches in", len(memory), "place")
	// Output: 20 batches in 1 place
}

// A loader is a stream, whose items carry the cursor that follows them.
func ExampleDataLoader_Stream() {
	loader, err := New(Slice[string]{"a", "b", "c"}, List[string], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	var stream Stream[[]string] = loader.Stream()
	var last Item[[]string]
	for item, err := range stream(context.Background(), Cursor{Epoch: 5}) {
		fmt.Println(item.Value, "then epoch", item.Next.Epoch, "pos", item.Next.Pos, err)
		last = item
	}
	for range stream(context.Background(), last.Next) {
		fmt.Println("not reached: nothing follows the last item")
	}
	// Output:
	// [a b] then epoch 5 pos 2 <nil>
	// [c] then epoch 5 pos 3 <nil>
}

// Four ranks share each epoch of ten samples. Train with PadTail, which repeats the first samples, or with DropTail, so
// that all ranks take the same number of steps. Evaluate with UnevenTail, which counts every sample once.
func ExampleTail() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for name, tail := range map[string]Tail{"pad": PadTail, "drop": DropTail, "uneven": UnevenTail} {
		text := name + ":"
		for rank := range 4 {
			loader, err := New(data, List[int], Options{BatchSize: 3, Shard: Shard{Index: rank, Count: 4}, Tail: tail})
			if err != nil {
				fmt.Println(err)
				return
			}
			for batch := range loader.Epoch(context.Background(), 0) {
				text += fmt.Sprint(" ", batch)
			}
		}
		fmt.Println(text)
	}
	// Unordered output:
	// pad: [0 4 8] [1 5 9] [2 6 0] [3 7 1]
	// drop: [0 4] [1 5] [2 6] [3 7]
	// uneven: [0 4 8] [1 5 9] [2 6] [3 7]
}

// Under torchrun, mpirun, srun or a Kubernetes indexed Job each process finds its shard in the environment.
func ExampleShardFromEnv() {
	os.Setenv("RANK", "1")
	os.Setenv("WORLD_SIZE", "4")
	defer os.Unsetenv("RANK")
	defer os.Unsetenv("WORLD_SIZE")
	shard, err := ShardFromEnv()
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(Slice[string]{"a", "b", "c", "d", "e", "f", "g", "h"}, List[string], Options{BatchSize: 2, Shard: shard})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(shard, batch)
	}
	// Output: {1 4} [b f]
}

// Skip bad samples, but not more than so many.
func ExampleSampleError() {
	data := Func(12, func(ctx context.Context, i int) (int, error) {
		if i%4 == 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	budget := 2
	loader, err := New(data, List[int], Options{BatchSize: 4, Workers: 2, OnError: func(e *SampleError) error {
		if budget--; budget < 0 {
			return e
		}
		fmt.Println("skipped sample", e.Index)
		return nil
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err, errors.Is(err, io.ErrUnexpectedEOF))
	}
	// Output:
	// skipped sample 3
	// [0 1 2] <nil> false
	// skipped sample 7
	// [4 5 6] <nil> false
	// [] dataloader: epoch 0, batch 2, sample 11: unexpected EOF true
}

// A panic in a worker is the error of its batch, with the stack.
func ExamplePanicError() {
	data := Func(2, func(ctx context.Context, i int) (string, error) {
		return []string{"a"}[i], nil // there is no sample 1
	})
	loader, err := New(data, List[string], Options{Workers: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		var p *PanicError
		if errors.As(err, &p) {
			fmt.Println(p.Value, len(p.Stack) > 0)
		} else {
			fmt.Println(batch, err)
		}
	}
	// Output:
	// [a] <nil>
	// runtime error: index out of range [1] with length 1 true
}

// Trace hears of every batch: who loaded it, when, and how long the loop waited for it.
func ExampleTiming() {
	var waited time.Duration
	loader, err := New(Slice[int]{0, 1, 2, 3, 4}, List[int], Options{BatchSize: 2, Trace: func(t Timing) {
		fmt.Println("batch", t.Batch, "worker", t.Worker, "samples", t.Samples, "dropped", t.Dropped, t.Done.Before(t.Start))
		waited += t.Wait
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range loader.Epoch(context.Background(), 0) {
	}
	fmt.Println(waited > 0)
	// Output:
	// batch 0 worker -1 samples 2 dropped 0 false
	// batch 1 worker -1 samples 2 dropped 0 false
	// batch 2 worker -1 samples 1 dropped 0 false
	// true
}

// Augmentation draws from Rand, which gives the same numbers for any number of workers.
func ExampleRand() {
	data := Func(4, func(ctx context.Context, i int) (string, error) {
		flip := Rand(ctx).IntN(2) == 1
		angle := Rand(WithSeed(ctx, 2)).IntN(10) // of a generator of its own
		onWorker := Worker(ctx) >= 0
		return fmt.Sprint("image ", i, " flip ", flip, " angle ", angle, " on a worker ", onWorker), nil
	})
	for _, workers := range []int{0, 3} {
		loader, err := New(data, List[string], Options{Seed: 7, Workers: workers})
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch := range loader.Epoch(context.Background(), 0) {
			fmt.Println(batch[0])
		}
	}
	// Output:
	// image 0 flip true angle 8 on a worker false
	// image 1 flip true angle 6 on a worker false
	// image 2 flip false angle 9 on a worker false
	// image 3 flip false angle 3 on a worker false
	// image 0 flip true angle 8 on a worker true
	// image 1 flip true angle 6 on a worker true
	// image 2 flip false angle 9 on a worker true
	// image 3 flip false angle 3 on a worker true
}

// The order that DistributedSampler gives each of three ranks, to share an epoch with a job in Python.
func ExampleTorchRandom() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for rank := range 3 {
		loader, err := New(data, List[int], Options{BatchSize: 4, Sampler: TorchRandom(10, 0), Shard: Shard{Index: rank, Count: 3}})
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch := range loader.Epoch(context.Background(), 0) {
			fmt.Println("rank", rank, batch)
		}
	}
	// Output:
	// rank 0 [4 5 0 2]
	// rank 1 [1 3 8 4]
	// rank 2 [7 9 6 1]
}

// The samplers. An order is a function of the epoch, which any loop may ask at any position.
func ExampleSampler() {
	weighted, err := Weighted([]float64{0, 1, 0, 3}, 8, true, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range []Sampler{
		Sequential(5),
		Random(5, 1),
		RandomWithReplacement(5, 8, 1),
		weighted,
		Resize(Random(5, 1), 8),
		OrderFunc(3, func(epoch int) []int { return []int{epoch, 1, 4} }), // the caller's own
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

// Batches of similar lengths, so that little is padding: the longest sentence times the number of sentences is at most
// 12. What a BatchSampler gives, Pad makes a matrix of.
func ExampleBuckets() {
	sentences := Slice[[]rune]{[]rune("hello"), []rune("I"), []rune("go"), []rune("world"), []rune("a"), []rune("of"), []rune("loaders")}
	lengths := make([]int, len(sentences))
	for i, s := range sentences {
		lengths[i] = len(s)
	}
	var sampler BatchSampler
	sampler, err := Buckets(lengths, 12, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(sentences, Pad('.'), Options{BatchSampler: sampler})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		var ragged Ragged[rune] = batch
		fmt.Printf("%v %v %q\n", ragged.Shape, ragged.Lengths, string(ragged.Data))
	}
	// Output:
	// [1 7] [7] "loaders"
	// [2 5] [5 5] "worldhello"
	// [2 2] [2 2] "goof"
	// [2 1] [1 1] "aI"
}

// Batches of a sampler, to build a batch sampler of one's own on: this one takes only every other.
func ExampleBatches() {
	all := Batches(Sequential(10), 3, false)
	batches := all.Batches(0)
	for k := 0; k < all.Len(); k += 2 {
		fmt.Println(batches(k))
	}
	// Output:
	// [0 1 2]
	// [6 7 8]
}

// A Collate of one's own makes batches of any type, here of the sum.
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
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch)
	}
	// Output:
	// 6
	// 15
}

// Split is random_split, with torch's own numbers; Subset takes given samples, and Concat puts data sets together.
func ExampleSplit() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	parts, err := Split(data, 1, 7, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	few, err := Subset(data, []int{9, 0})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range []Dataset[int]{parts[0], parts[1], Concat(few, parts[1])} {
		var all []int
		for i := range d.Len() {
			v, err := d.Get(context.Background(), i)
			if err != nil {
				fmt.Println(err)
				return
			}
			all = append(all, v)
		}
		fmt.Println(all)
	}
	// Output:
	// [5 6 1 2 0 8 9]
	// [3 7 4]
	// [9 0 3 7 4]
}

// Files of any file system, here one in memory, decoded as they are fetched.
func ExampleFiles() {
	fsys := fstest.MapFS{
		"a.txt":     {Data: []byte("one")},
		"b/c.txt":   {Data: []byte("two")},
		"b/d.jpg":   {Data: []byte("not text")},
		"b/e/f.txt": {Data: []byte("three")},
	}
	files, err := Files(fsys, "**/*.txt")
	if err != nil {
		fmt.Println(err)
		return
	}
	words := Transform(files, func(ctx context.Context, f File) (string, error) {
		return f.Name + ": " + strings.ToUpper(string(f.Data)), nil
	})
	loader, err := New(words, List[string], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch)
	}
	// Output:
	// [a.txt: ONE b/c.txt: TWO]
	// [b/e/f.txt: THREE]
}

// Images in a folder for each class.
func ExampleFolder() {
	fsys := fstest.MapFS{
		"cat/1.png": {Data: []byte("meow")},
		"cat/2.png": {Data: []byte("purr")},
		"dog/1.png": {Data: []byte("woof")},
	}
	data, classes, err := Folder(fsys)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, List[Pair[File, int]], Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch[0].First.Name, classes[batch[0].Second], string(batch[0].First.Data))
	}
	// Output:
	// cat/1.png cat meow
	// cat/2.png cat purr
	// dog/1.png dog woof
}

// What is slow or fails now and then: try up to three times, and keep what has been fetched.
func ExampleCache() {
	calls := 0
	remote := Func(2, func(ctx context.Context, i int) (string, error) {
		if calls++; calls == 1 {
			return "", io.ErrUnexpectedEOF
		}
		return fmt.Sprint("sample ", i), nil
	})
	loader, err := New(Cache(Retry(remote, 3, time.Millisecond)), List[string], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for epoch := range 3 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			fmt.Println(batch, err, calls, "calls")
		}
	}
	// Output:
	// [sample 0 sample 1] <nil> 3 calls
	// [sample 0 sample 1] <nil> 3 calls
	// [sample 0 sample 1] <nil> 3 calls
}

// A data set that fetches a batch in one call, as from a data base.
type table struct{ Slice[string] }

func (t table) GetBatch(ctx context.Context, ids []int) ([]string, error) {
	fmt.Println("SELECT … WHERE id IN", ids)
	rows := make([]string, len(ids))
	for j, id := range ids {
		rows[j] = t.Slice[id]
	}
	return rows, nil
}

func ExampleBatchGetter() {
	var data Dataset[string] = table{Slice[string]{"a", "b", "c"}}
	_, ok := data.(BatchGetter[string])
	loader, err := New(data, List[string], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, ok)
	}
	// Output:
	// SELECT … WHERE id IN [0 1]
	// [a b] true
	// SELECT … WHERE id IN [2]
	// [c] true
}

// evaluate takes any loader of batches of numbers.
func evaluate(loader *DataLoader[[]int]) (sum int, err error) {
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

func ExampleDataLoader() {
	loader, err := New(Slice[int]{1, 2, 3, 4}, List[int], Options{BatchSize: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	var lists *DataLoader[[]int] = loader // the type of the samples is gone, that of the batches stays
	fmt.Println(evaluate(lists))
	// Output: 10 <nil>
}

// The RFC's three small parts, each a stage of its own: list files, load them, decode them. Loading is in workers and
// ahead of decoding.
func ExampleMap() {
	fsys := fstest.MapFS{"a.txt": {Data: []byte("7")}, "b.txt": {Data: []byte("8")}, "c.txt": {Data: []byte("9")}}
	names, err := fs.Glob(fsys, "*.txt")
	if err != nil {
		fmt.Println(err)
		return
	}
	list := Map(Indices(Sequential(len(names))), 0, func(_ context.Context, i int) (string, error) { return names[i], nil })
	load := Map(list, 2, func(_ context.Context, name string) ([]byte, error) { return fs.ReadFile(fsys, name) }).Prefetch(10)
	decode := Map(load, 0, func(_ context.Context, data []byte) (int, error) { return strconv.Atoi(string(data)) })
	for number, err := range decode.Epoch(context.Background(), 0) {
		fmt.Println(number, err)
	}
	// Output:
	// 7 <nil>
	// 8 <nil>
	// 9 <nil>
}

// The RFC's own program: three copies of one source, two of them mapped, joined in turn. A stream is a definition, so a
// copy is to use it again.
func ExampleMix() {
	numbers := Indices(Sequential(3))
	times := func(factor int) Stream[int] {
		return Map(numbers, 0, func(_ context.Context, i int) (int, error) { return i * factor, nil })
	}
	for i := range Mix(MixOptions{Stop: StopAtLast}, numbers, times(100), times(111)).Epoch(context.Background(), 0) {
		fmt.Print(i, " ")
	}
	// Output: 0 0 0 1 100 111 2 200 222
}

// Data sets mixed by weight. How a mix ends is one of four rules.
func ExampleMixOptions() {
	letters := func(text string) Stream[string] {
		return Map(Indices(Sequential(len(text))), 0, func(_ context.Context, i int) (string, error) { return text[i : i+1], nil })
	}
	var stop Stop
	for _, stop = range []Stop{StopAtFirst, StopAtLast, CycleUntilLast, CycleForever} {
		mix := Mix(MixOptions{Weights: []float64{3, 1}, Seed: 4, Stop: stop}, letters("abcdef"), letters("XYZ")).Take(24)
		for letter := range mix.Epoch(context.Background(), 0) {
			fmt.Print(letter)
		}
		fmt.Println()
	}
	// Output:
	// abXcdef
	// abXcdefYZ
	// abXcdefabcYdefaZ
	// abXcdefabcYdefaZXbcdefaY
}

// Batch sizes that differ between phases: fetch in batches of 4, shuffle the samples, train in batches of 3.
func ExampleUnbatch() {
	fetched := Map(Batch(Indices(Sequential(10)), 4, List[int]), 2, func(_ context.Context, rows []int) ([]string, error) {
		samples := make([]string, len(rows)) // one query for all of them
		for j, row := range rows {
			samples[j] = fmt.Sprint("row ", row)
		}
		return samples, nil
	})
	for batch, err := range Batch(Unbatch(fetched), 3, List[string]).Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [row 0 row 1 row 2] <nil>
	// [row 3 row 4 row 5] <nil>
	// [row 6 row 7 row 8] <nil>
	// [row 9] <nil>
}

// A pipeline of one's own gives the batches of the classic loader. Its first one comes sooner, because all workers fetch
// the same batch. Pad makes padded batches in the same way.
func ExampleBatch() {
	data := Slice[string]{"a", "b", "c", "d", "e"}
	sampler := Random(data.Len(), 1)
	pipeline := Batch(Map(Indices(sampler), 8, data.Get), 2, List[string])
	loader, err := New(data, List[string], Options{Sampler: sampler, BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for both := range Zip(pipeline, loader.Stream()).Epoch(context.Background(), 0) {
		fmt.Println(both.First, both.Second)
	}
	words := Map(Indices(Sequential(3)), 0, func(_ context.Context, i int) ([]rune, error) {
		return []rune([]string{"pad", "to", "longest"}[i]), nil
	})
	for padded := range Batch(words, 2, Pad('.')).Epoch(context.Background(), 0) {
		fmt.Println(padded.Shape, padded.Lengths, string(padded.Data))
	}
	// Output:
	// [c b] [c b]
	// [a e] [a e]
	// [d] [d]
	// [2 3] [3 2] padto.
	// [1 7] [7] longest
}

// Collate as a stage of its own, after a stage that only makes lists: here in workers.
func ExampleBatch_collate() {
	lists := Batch(Indices(Sequential(5)), 2, List[int])
	sums := Map(lists, 2, func(_ context.Context, list []int) (sum int, err error) {
		for _, i := range list {
			sum += i
		}
		return sum, nil
	})
	for sum, err := range sums.Epoch(context.Background(), 0) {
		fmt.Println(sum, err)
	}
	// Output:
	// 1 <nil>
	// 5 <nil>
	// 4 <nil>
}

// A checkpoint in the middle of any composition: here of a shuffled, filtered and mapped sequence, read ahead.
func ExampleFromSeq() {
	lines := FromSeq(func(ctx context.Context, epoch int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { // open the file here, and close it when this returns
			for _, line := range strings.Fields("one two three four five six seven eight") {
				if !yield(line, nil) {
					return
				}
			}
		}
	})
	long := lines.Shuffle(4, 1).Filter(func(s string) bool { return len(s) > 3 })
	upper := Map(long, 2, func(_ context.Context, s string) (string, error) { return strings.ToUpper(s), nil }).Prefetch(3)

	var at Cursor
	for s := range upper.Run(context.Background(), &at) {
		fmt.Print(s, " ")
		if at.Pos >= 5 {
			break
		}
	}
	saved, err := json.Marshal(at)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("|", string(saved))
	var resumed Cursor
	if err := json.Unmarshal(saved, &resumed); err != nil {
		fmt.Println(err)
		return
	}
	for s := range upper.Run(context.Background(), &resumed) {
		fmt.Print(s, " ")
	}
	fmt.Println("| then epoch", resumed.Epoch)
	// Output:
	// THREE FIVE FOUR | {"epoch":0,"pos":5,"state":{"by":"Shuffle(4, seed 1)","n":2,"m":1,"source":{"epoch":0,"pos":3,"state":{"by":"FromSeq"}}}}
	// SEVEN EIGHT | then epoch 1
}

// Streams one after the other, or side by side; repeated, cut off, and dealt to ranks.
func ExampleChain() {
	low := Indices(Sequential(3))
	high := Map(low, 0, func(_ context.Context, i int) (int, error) { return 10 + i, nil })
	show := func(s Stream[int]) {
		var all []int
		for i := range s.Epoch(context.Background(), 0) {
			all = append(all, i)
		}
		fmt.Println(all)
	}
	show(Chain(low, high))
	show(low.Repeat(2))
	show(low.Repeat(0).Take(8)) // endless, but for Take
	show(Chain(low, high).Shard(Shard{Index: 1, Count: 2}))
	for pair := range Zip(low, high).Epoch(context.Background(), 0) {
		fmt.Print(pair, " ")
	}
	// Output:
	// [0 1 2 10 11 12]
	// [0 1 2 0 1 2]
	// [0 1 2 0 1 2 0 1]
	// [1 10 12]
	// {0 10} {1 11} {2 12}
}

// Sharding by the framework, which the source does not know about, and a part in a goroutine of its own. Nothing is opened before the
// first item is asked for.
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
	part := source.Shard(Shard{Index: 0, Count: 2}).Prefetch(2)
	fmt.Println("defined")
	for i := range part.Epoch(context.Background(), 0) {
		fmt.Println(i)
	}
	// Output:
	// defined
	// opened
	// 0
	// 2
	// 4
}

// Errors tell where they come from, and the items after them come.
func ExampleStream_Filter() {
	parse := Map(Indices(Sequential(4)), 2, func(_ context.Context, i int) (int, error) {
		return strconv.Atoi([]string{"7", "8", "nine", "10"}[i])
	})
	for n, err := range parse.Filter(func(n int) bool { return n != 8 }).Epoch(context.Background(), 0) {
		fmt.Println(n, err)
	}
	// Output:
	// 7 <nil>
	// 0 dataloader: Map: epoch 0, the item before pos 3: strconv.Atoi: parsing "nine": invalid syntax
	// 10 <nil>
}

// Training on images.

var update = flag.Bool("update", false, "rewrite the files in testdata")

// digitFonts has the ways to write each digit. A way is strokes, a stroke is points, and a point is its
// column, 0 to 7 from the left, and its row, 0 to 9 from the top. A stroke after "~" is a curve, which its
// points draw towards them.
var digitFonts = [10][]string{
	{"~30 00 09 69 60 30", "~30 10 19 59 50 30, 51 18", "~40 10 03 07 29 49 66 62 40"},
	{"30 39", "12 30 39", "12 30 39, 19 59", "~50 40 29"},
	{"~02 00 60 64 09, 09 69", "00 60 64 05 09 69", "~02 10 60 63 28 09 07 27 59 68"},
	{"~01 10 60 64 24, ~24 64 69 19 08", "00 60 24, ~24 64 69 19 08", "~01 00 60 54 14, ~14 75 69 09 07"},
	{"10 06 66, 43 49", "49 40 06 66", "00 04 64, 60 69", "~10 02 06 24 65, ~61 54 49"},
	{"60 10 04, ~04 63 69 09 08", "60 00 04 64 69 09", "~60 10 11 04, ~04 53 65 69 29 07"},
	{"~50 00 09 69 64 04 06", "~41 15 09 69 64 24 06", "~61 60 00 09 69 65 14 06", "~30 04 09 59 65 25 18"},
	{"00 60 29", "00 60 29, 15 55", "02 00 60, ~60 34 39", "~01 10 50 60, 60 19, 25 64"},
	{"~34 04 00 60 64 34, ~34 04 09 69 64 34", "~61 50 00 03 66 69 09 06 62 60", "~34 14 10 50 54 34, ~34 04 09 69 64 34"},
	{"~62 60 00 05 65 62, 62 69", "~63 60 00 05 65 63, ~62 69 29 08", "~62 50 00 04 35 62, 62 39"},
}

// drawDigits draws the images of digits.zip, by their names.
func drawDigits() map[string]*image.Gray {
	images := map[string]*image.Gray{}
	rng := rand.New(rand.NewPCG(1, 2))
	for digit, font := range digitFonts {
		draw := func(folder string, n int) {
			for i := range n {
				images[fmt.Sprintf("%s/%d/%03d.png", folder, digit, i)] = drawDigit(font[rng.IntN(len(font))], rng)
			}
		}
		draw("train", 55)
		draw("test", 25)
	}
	return images
}

// drawDigit draws one way to write a digit as a hand does it: a bit aside, leaning, turned, in one size or
// another, with some pen and some ink, on paper that is not clean.
func drawDigit(strokes string, rng *rand.Rand) *image.Gray {
	between := func(low, high float64) float64 { return low + (high-low)*rng.Float64() }
	var ( // points are complex numbers, the unit is a pixel
		wide, high = between(0.95, 1.35), between(1, 1.35) // of a column and a row
		lean       = between(-0.2, 0.3)
		turn       = cmplx.Rect(1, between(-0.1, 0.1))
		centre     = complex(between(6.5, 8.5), between(6.5, 8.5))
		pen        = between(0.5, 1.1) // half as thick as a stroke
		ink        = between(150, 255)
	)
	var segments [][2]complex128
	for stroke := range strings.SplitSeq(strokes, ", ") {
		stroke, curved := strings.CutPrefix(stroke, "~")
		var line []complex128
		for point := range strings.FieldsSeq(stroke) {
			x, y := wide*(float64(point[0]-'0')-3), high*(float64(point[1]-'0')-4.5)
			line = append(line, centre+turn*complex(x-lean*y, y))
		}
		if curved {
			line = smooth(smooth(smooth(line)))
		}
		for i, b := range line[1:] {
			segments = append(segments, [2]complex128{line[i], b})
		}
	}
	img := image.NewGray(image.Rect(0, 0, 16, 16))
	for y := range 16 {
		for x := range 16 {
			off := math.Inf(1) // from the nearest stroke
			for _, s := range segments {
				off = min(off, distance(complex(float64(x), float64(y)), s[0], s[1]))
			}
			covered := min(max(pen-off+0.5, 0), 1)
			img.SetGray(x, y, color.Gray{Y: uint8(math.Round(ink * covered))})
		}
	}
	for range rng.IntN(8) {
		img.Pix[rng.IntN(len(img.Pix))] = uint8(rng.IntN(256))
	}
	return img
}

// smooth cuts the corners of a line, as Chaikin does; its ends stay.
func smooth(line []complex128) []complex128 {
	last := len(line) - 1
	cut := []complex128{line[0]}
	for i, b := range line[1:] {
		cut = append(cut, 0.75*line[i]+0.25*b, 0.25*line[i]+0.75*b)
	}
	return append(cut, line[last])
}

// distance returns how far p is from the segment between a and b.
func distance(p, a, b complex128) float64 {
	p, b = p-a, b-a
	along := (real(p)*real(b) + imag(p)*imag(b)) / (real(b)*real(b) + imag(b)*imag(b))
	return cmplx.Abs(p - complex(min(max(along, 0), 1), 0)*b)
}

// zipDigits packs images. PNG has compressed them, so they are stored, and raw, which for so small files
// saves a lot.
func zipDigits(images map[string]*image.Gray) ([]byte, error) {
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		var data bytes.Buffer
		if err := encoder.Encode(&data, images[name]); err != nil {
			return nil, err
		}
		size := uint64(data.Len())
		f, err := w.CreateRaw(&zip.FileHeader{
			Name: name, CRC32: crc32.ChecksumIEEE(data.Bytes()), CompressedSize64: size, UncompressedSize64: size,
		})
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(data.Bytes()); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return packed.Bytes(), err
}

// TestDigits draws digits.zip again and compares. Only the pixels count: the compressed bytes may differ
// from one version of Go to the next.
func TestDigits(t *testing.T) {
	images := drawDigits()
	if *update {
		packed, err := zipDigits(images)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/digits.zip", packed, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	archive, err := zip.OpenReader("testdata/digits.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if len(archive.File) != len(images) {
		t.Errorf("%d files, want %d", len(archive.File), len(images))
	}
	for _, file := range archive.File {
		want, ok := images[file.Name]
		if !ok {
			t.Errorf("%s: want no such file", file.Name)
			continue
		}
		delete(images, file.Name) // so that a second one of the name is an error
		r, err := file.Open()
		if err != nil {
			t.Errorf("%s: %v", file.Name, err)
			continue
		}
		img, err := png.Decode(r)
		if err != nil {
			t.Errorf("%s: %v", file.Name, err)
			continue
		}
		got, ok := img.(*image.Gray)
		if !ok || got.Rect != want.Rect {
			t.Errorf("%s: %T of %v, want %T of %v", file.Name, img, img.Bounds(), want, want.Rect)
			continue
		}
		for i := range want.Pix {
			// A machine that fuses multiplication and addition skips a rounding of others. That may be the
			// difference between 99.4999… and 99.5, hence one level, but never two.
			if d := int(got.Pix[i]) - int(want.Pix[i]); d < -1 || d > 1 {
				t.Errorf("%s: pixel %d is %d, want %d", file.Name, i, got.Pix[i], want.Pix[i])
				break
			}
		}
	}
}

// A digitImage is an image of the shape [16 16], from 0 for paper to 1 for ink, and the digit that it shows.
type digitImage = Pair[Tensor[float32], int]

// decodeDigit makes an image of a PNG file.
func decodeDigit(_ context.Context, file Pair[File, int]) (digitImage, error) {
	img, err := png.Decode(bytes.NewReader(file.First.Data))
	if err != nil {
		return digitImage{}, fmt.Errorf("%s: %w", file.First.Name, err)
	}
	gray, ok := img.(*image.Gray)
	if !ok {
		return digitImage{}, fmt.Errorf("%s: %T, want %T", file.First.Name, img, gray)
	}
	pixels := make([]float32, len(gray.Pix))
	for i, p := range gray.Pix {
		pixels[i] = float32(p) / 255
	}
	return digitImage{
		First:  Tensor[float32]{Data: pixels, Shape: []int{gray.Rect.Dy(), gray.Rect.Dx()}},
		Second: file.Second,
	}, nil
}

// rollDigit moves an image by up to a pixel up or down and left or right, in every epoch anew. What leaves it
// on one side comes back on the other.
func rollDigit(ctx context.Context, digit digitImage) (digitImage, error) {
	rng, width, pixels := Rand(ctx), digit.First.Shape[1], digit.First.Data
	k := (rng.IntN(3)-1)*width + rng.IntN(3) - 1
	k = (k + len(pixels)) % len(pixels)
	digit.First.Data = slices.Concat(pixels[k:], pixels[:k]) // a copy; pixels are the Cache's
	return digit, nil
}

const digitPixels = 16 * 16

// A softmax is a model that tells digits apart: for each, the weights of the pixels, and last the bias.
type softmax [10][digitPixels + 1]float64

// classify returns the probability of each digit, for image i of a batch, and the most probable digit.
func (m *softmax) classify(images Tensor[float32], i int) (p [10]float64, best int) {
	for d := range p {
		w := &m[d]
		p[d] = w[digitPixels]
		for j, x := range images.Data[i*digitPixels : (i+1)*digitPixels] {
			p[d] += w[j] * float64(x)
		}
	}
	top, sum := slices.Max(p[:]), 0.0
	best = slices.Index(p[:], top)
	for d := range p {
		p[d] = math.Exp(p[d] - top) // at most 1, and so never too large
		sum += p[d]
	}
	for d := range p {
		p[d] /= sum
	}
	return p, best
}

// learn takes one step down the gradient of a batch's cross-entropy, summed over its images.
func (m *softmax) learn(images Tensor[float32], labels []int, rate float64) {
	var gradient softmax
	for i, label := range labels {
		p, _ := m.classify(images, i)
		p[label]--
		for d := range p {
			g := &gradient[d]
			for j, x := range images.Data[i*digitPixels : (i+1)*digitPixels] {
				g[j] += p[d] * float64(x)
			}
			g[digitPixels] += p[d]
		}
	}
	for d := range m {
		for j := range m[d] {
			m[d][j] -= rate * gradient[d][j]
		}
	}
}

// Training that was interrupted in the middle of an epoch goes on as if nothing had happened, in another
// process, with another number of workers: the same images come in the same order, moved at random by the
// same pixels, and make the same weights.
func Example_training() {
	ctx := context.Background()
	archive, err := zip.OpenReader("testdata/digits.zip") // train/0/000.png to test/9/024.png
	if err != nil {
		log.Fatal(err)
	}
	defer archive.Close()

	// open returns the images in a folder of the archive. Each is decoded once, by a worker.
	open := func(folder string) (Dataset[digitImage], error) {
		sub, err := fs.Sub(archive, folder)
		if err != nil {
			return nil, err
		}
		files, _, err := Folder(sub) // the classes are "0" to "9", so their numbers are the digits
		if err != nil {
			return nil, err
		}
		return Cache(Transform(files, decodeDigit)), nil
	}

	// A checkpoint is all that a training process must know of those before it.
	type checkpoint struct {
		Model softmax
		At    Cursor
	}

	// train is such a process. It goes on from a saved checkpoint until epoch 30, or until it is interrupted
	// after a number of batches, and saves another one.
	train := func(saved []byte, workers, batches int) ([]byte, error) {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			return nil, err
		}
		digits, err := open("train")
		if err != nil {
			return nil, err
		}
		loader, err := New(Transform(digits, rollDigit), CollatePair(Stack[float32], List[int]), Options{
			BatchSize: 32, Shuffle: true, Seed: 1, Workers: workers,
		})
		if err != nil {
			return nil, err
		}
		for c.At.Epoch < 30 {
			for batch, err := range loader.Run(ctx, &c.At) {
				if err != nil {
					return nil, err
				}
				c.Model.learn(batch.First, batch.Second, 0.01)
				loader.Recycle(batch)
				if batches--; batches == 0 {
					return json.Marshal(c)
				}
			}
		}
		return json.Marshal(c)
	}

	// accuracy is the share of the test images that a saved model knows.
	accuracy := func(saved []byte) (float64, error) {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			return 0, err
		}
		digits, err := open("test")
		if err != nil {
			return 0, err
		}
		loader, err := New(digits, CollatePair(Stack[float32], List[int]), Options{
			BatchSize: 32, Workers: 2, Tail: UnevenTail, // each image once, on any number of ranks
		})
		if err != nil {
			return 0, err
		}
		known := 0
		for batch, err := range loader.Epoch(ctx, 0) {
			if err != nil {
				return 0, err
			}
			for i, label := range batch.Second {
				if _, best := c.Model.classify(batch.First, i); best == label {
					known++
				}
			}
			loader.Recycle(batch)
		}
		return float64(known) / float64(digits.Len()), nil
	}

	start := []byte("{}")
	whole, err := train(start, 2, -1) // never interrupted
	if err != nil {
		log.Fatal(err)
	}
	half, err := train(start, 2, 260) // interrupted in epoch 14, after 8 of 18 batches
	if err != nil {
		log.Fatal(err)
	}
	rest, err := train(half, 3, -1) // goes on there
	if err != nil {
		log.Fatal(err)
	}
	share, err := accuracy(rest)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.0f %% of the test images recognized\n", 100*share)
	fmt.Println("the same weights as without the interruption:", bytes.Equal(rest, whole))
	// Output:
	// 96 % of the test images recognized
	// the same weights as without the interruption: true
}

// The train digits of testdata/digits.zip become tar shards, from which a model is then trained: a stream of
// records, shuffled, decoded by several goroutines, in batches. Its cursor resumes in the middle of a shard, of
// the shuffle and of an epoch.
func Example_trainingFromTar() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "digits")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := packDigits(ctx, filepath.Join(dir, "train-%02d.tar"), 6); err != nil {
		log.Fatal(err)
	}
	shards, err := Expand(filepath.Join(dir, "train-{00..05}.tar"))
	if err != nil {
		log.Fatal(err)
	}

	// stream is the pipeline, for any number of workers.
	stream := func(workers int) Stream[Pair[Tensor[float32], []int]] {
		records, err := Tar(shards, TarOptions{Shuffle: true, Seed: 1})
		if err != nil {
			log.Fatal(err)
		}
		digits := Map(records.Shuffle(200, 2), workers, func(ctx context.Context, r Record) (digitImage, error) {
			label, err := Decode("cls", r.Get("cls"))
			if err != nil {
				return digitImage{}, fmt.Errorf("%s of %s: %w", r.Key, r.Shard, err)
			}
			digit, err := decodeDigit(ctx, Pair[File, int]{File{r.Key, r.Get("png")}, label.(int)})
			if err != nil {
				return digitImage{}, err
			}
			return rollDigit(ctx, digit)
		})
		return Batch(digits, 32, CollatePair(Stack[float32], List[int])).Prefetch(2)
	}

	type checkpoint struct {
		Model softmax
		At    Cursor
	}
	// train goes on from a checkpoint until epoch 20, or through a number of batches.
	train := func(saved []byte, workers, batches int) []byte {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			log.Fatal(err)
		}
		for c.At.Epoch < 20 && batches != 0 {
			for batch, err := range stream(workers).Run(ctx, &c.At) {
				if err != nil {
					log.Fatal(err)
				}
				c.Model.learn(batch.First, batch.Second, 0.01)
				if batches--; batches == 0 {
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
	whole := train([]byte("{}"), 2, -1)
	half := train([]byte("{}"), 0, 130)
	rest := train(half, 3, -1)
	fmt.Println("the same weights as without the interruption:", bytes.Equal(rest, whole))

	// The same shards as a data set, to be read in any order.
	data, err := OpenTar(shards...)
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	var c checkpoint
	if err := json.Unmarshal(rest, &c); err != nil {
		log.Fatal(err)
	}
	known := 0
	for i := range data.Len() {
		r, err := data.Get(ctx, i)
		if err != nil {
			log.Fatal(err)
		}
		digit, err := decodeDigit(ctx, Pair[File, int]{First: File{r.Key, r.Get("png")}})
		if err != nil {
			log.Fatal(err)
		}
		if _, best := c.Model.classify(digit.First, 0); strconv.Itoa(best) == string(r.Get("cls")) {
			known++
		}
	}
	fmt.Printf("%d of %d training images recognized\n", known, data.Len())
	// Output:
	// the same weights as without the interruption: true
	// 528 of 550 training images recognized
}

// packDigits deals the train digits out to tar shards, in random order: as a rule that is done once, because shards are
// read from front to back.
func packDigits(ctx context.Context, pattern string, shards int) error {
	archive, err := zip.OpenReader("testdata/digits.zip")
	if err != nil {
		return err
	}
	defer archive.Close()
	train, err := fs.Sub(archive, "train")
	if err != nil {
		return err
	}
	files, classes, err := Folder(train)
	if err != nil {
		return err
	}
	for s := range shards {
		out, err := os.Create(fmt.Sprintf(pattern, s))
		if err != nil {
			return err
		}
		w := NewTarWriter(out)
		for i := range Indices(Random(files.Len(), 7)).Shard(Shard{s, shards}).Epoch(ctx, 0) {
			file, err := files.Get(ctx, i)
			if err != nil {
				return err
			}
			class := classes[file.Second]
			if err := w.Write(Record{
				Key:   class + "/" + strings.TrimSuffix(path.Base(file.First.Name), ".png"),
				Files: []File{{"png", file.First.Data}, {"cls", []byte(class)}},
			}); err != nil {
				return err
			}
		}
		if err := errors.Join(w.Close(), out.Close()); err != nil {
			return err
		}
	}
	return nil
}

// pack makes a tar shard in a new folder.
func pack(name string, records ...Record) (path string, err error) {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, name)
	out, err := os.Create(path)
	if err != nil {
		return "", err
	}
	w := NewTarWriter(out)
	for _, r := range records {
		if err := w.Write(r); err != nil {
			return "", err
		}
	}
	return path, errors.Join(w.Close(), out.Close())
}

// A shard that has been cut gives the records that are whole, and then an error; the next shard follows.
func ExampleTar() {
	shard, err := pack("train-0.tar",
		Record{Key: "cat", Files: []File{{"txt", []byte("meow")}, {"cls", []byte("0")}}},
		Record{Key: "dog", Files: []File{{"txt", []byte("woof")}, {"cls", []byte("1")}}},
	)
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(shard))
	whole, err := os.ReadFile(shard)
	if err != nil {
		log.Fatal(err)
	}
	cut := filepath.Join(filepath.Dir(shard), "train-1.tar")
	if err := os.WriteFile(cut, whole[:3000], 0o666); err != nil {
		log.Fatal(err)
	}

	records, err := Tar([]string{cut, shard}, TarOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		var bad *TarError
		if errors.As(err, &bad) {
			fmt.Println("skipping the rest of", filepath.Base(bad.Shard), "from", bad.Entry, "on")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s %s\n", r.Key, r.Get("cls"), r.Get("txt"))
	}
	// Output:
	// cat: 0 meow
	// skipping the rest of train-1.tar from dog.cls on
	// cat: 0 meow
	// dog: 1 woof
}

// A shard is made of records, here in memory. Records that could not be read back as they are do not get into it.
func ExampleTarWriter() {
	put := func(w *TarWriter, key, text string) error {
		return w.Write(Record{Key: key, Files: []File{{"txt", []byte(text)}, {"cls", []byte("0")}}})
	}
	var shard bytes.Buffer
	w := NewTarWriter(&shard)
	if err := put(w, "pets/cat", "meow"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(put(w, "pets/dog.2", "woof"))
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
	// dataloader: TarWriter: file "pets/dog.2.cls" of record "pets/dog.2" would be read as field "2.cls" of record "pets/dog"
	// pets/cat.cls 1
	// pets/cat.txt 4
}

// The records of shards by their index, for a loader that shuffles all of them. The index is made once.
func ExampleOpenTar() {
	shard, err := pack("train.tar",
		Record{Key: "cat", Files: []File{{"txt", []byte("meow")}}},
		Record{Key: "cow", Files: []File{{"txt", []byte("moo")}}},
		Record{Key: "dog", Files: []File{{"txt", []byte("woof")}}},
	)
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(shard))

	var data *TarDataset
	data, err = OpenTar(shard)
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	if err := data.WriteIndex(); err != nil { // beside it; the next OpenTar need not read the shard
		log.Fatal(err)
	}
	loader, err := New(data, List[Record], Options{BatchSize: 2, Shuffle: true, Seed: 3, Workers: 2})
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
	// dog: woof
	// cow: moo
	// cat: meow
}

// Shards in a store that Open does not know, here a file system in memory. Requests that need a header, or an
// address that has to be signed anew, are opened in the same way.
func ExampleOpener() {
	store := fstest.MapFS{"bucket/train.tar": {Data: tarEntries("cat.txt=meow")}}
	var open Opener = func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		object, ok := strings.CutPrefix(name, "mem://")
		if !ok {
			return Open(ctx, name, offset)
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

func ExampleExpand() {
	shards, err := Expand("https://example.org/{train-{08..10},valid}.tar")
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
	// https://example.org/valid.tar
}

// A folder or an archive in, its files out, each decoded as far as the library can.
func ExampleDecode() {
	decoded := func(name string) (Stream[any], error) {
		if strings.HasSuffix(name, ".tar") {
			records, err := Tar([]string{name}, TarOptions{})
			if err != nil {
				return nil, err
			}
			files := Unbatch(Map(records, 0, func(_ context.Context, r Record) ([]File, error) { return r.Files, nil }))
			return Map(files, 2, func(_ context.Context, f File) (any, error) { return Decode(f.Name, f.Data) }), nil
		}
		files, err := Files(os.DirFS(name))
		if err != nil {
			return nil, err
		}
		return Map(Indices(Sequential(files.Len())), 2, func(ctx context.Context, i int) (any, error) {
			f, err := files.Get(ctx, i)
			if err != nil {
				return nil, err
			}
			return Decode(f.Name, f.Data)
		}), nil
	}

	archive, err := pack("pets.tar", Record{Key: "cat", Files: []File{{"json", []byte(`{"legs": 4}`)}, {"cls", []byte("0")}, {"txt", []byte("meow")}}})
	if err != nil {
		log.Fatal(err)
	}
	folder := filepath.Dir(archive)
	defer os.RemoveAll(folder)
	if err := os.Mkdir(filepath.Join(folder, "dog"), 0o777); err != nil {
		log.Fatal(err)
	}
	for name, text := range map[string]string{"dog.json": `{"legs": 4}`, "dog.cls": "1", "dog.txt": "woof"} {
		if err := os.WriteFile(filepath.Join(folder, "dog", name), []byte(text), 0o666); err != nil {
			log.Fatal(err)
		}
	}
	for _, name := range []string{archive, filepath.Join(folder, "dog")} {
		stream, err := decoded(name)
		if err != nil {
			log.Fatal(err)
		}
		for value, err := range stream.Epoch(context.Background(), 0) {
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
	// int 1
	// map[string]interface {} map[legs:4]
	// string woof
}

// A data set of one's own is a type with two methods.
type squares struct{ n int }

func (s squares) Len() int { return s.n }

func (s squares) Get(ctx context.Context, i int) (Tensor[float32], error) {
	x := float32(i)
	return Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}}, nil
}

func Example_datasetOfYourOwn() {
	loader, err := New(squares{5}, Stack[float32], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.Shape, batch.Data)
	}
	// Output:
	// [2 2] [0 0 1 1]
	// [2 2] [2 4 3 9]
	// [1 2] [4 16]
}

func Example_imageFolder() {
	archive, err := zip.OpenReader("testdata/digits.zip")
	if err != nil {
		log.Fatal(err)
	}
	defer archive.Close()
	images, err := fs.Sub(archive, "train")
	if err != nil {
		log.Fatal(err)
	}
	if err := showImages(images); err != nil {
		log.Fatal(err)
	}
	// Output: [0 1 2 3 4 5 6 7 8 9] [64 16 16] 64
}

// showImages loads a batch of the images in fsys, which has a folder for each class.
func showImages(fsys fs.FS) error {
	files, classes, err := Folder(fsys) // os.DirFS("train") with cat/1.png, dog/1.png, …
	if err != nil {
		return err
	}
	images := Transform(files, func(ctx context.Context, f Pair[File, int]) (Pair[Tensor[float32], int], error) {
		img, err := Decode(f.First.Name, f.First.Data)
		if err != nil {
			return Pair[Tensor[float32], int]{}, err
		}
		return Pair[Tensor[float32], int]{First: pixels(img.(image.Image)), Second: f.Second}, nil
	})
	loader, err := New(images, CollatePair(Stack[float32], List[int]), Options{
		BatchSize: 64, Shuffle: true, Workers: runtime.NumCPU(),
	})
	if err != nil {
		return err
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			return err
		}
		fmt.Println(classes, batch.First.Shape, len(batch.Second))
		break
	}
	return nil
}

// pixels are the gray values of an image.
func pixels(img image.Image) Tensor[float32] {
	b := img.Bounds()
	t := Tensor[float32]{Shape: []int{b.Dy(), b.Dx()}}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			t.Data = append(t.Data, float32(color.GrayModel.Convert(img.At(x, y)).(color.Gray).Y)/255)
		}
	}
	return t
}

// A checkpoint is what a training process must save for the next one: its model, here a sum, and the cursor. It is written
// to another file and renamed, so that there is always a whole one.
func Example_checkpoint() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "checkpoint.json")
	loader, err := New(Slice[int]{1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2, Shuffle: true, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}

	train := func(steps int) error {
		var c struct {
			Sum int
			At  Cursor
		}
		saved, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(saved, &c)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
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
				if saved, err = json.Marshal(c); err == nil {
					err = os.WriteFile(name+".new", saved, 0o666)
				}
				if err = cmp.Or(err, os.Rename(name+".new", name)); err != nil {
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
	// Output:
	// interrupted
	// the sum of two epochs: 30
	// <nil>
}

// What frameworks take is Data and Shape. This model is a function of such a pair; as for others,
//
//	GoMLX            tensors.FromFlatDataAndDimensions(batch.Data, batch.Shape...)
//	Gorgonia         tensor.New(tensor.WithShape(batch.Shape...), tensor.WithBacking(batch.Data))
//	onnxruntime_go   ort.NewTensor(ort.NewShape(shape...), batch.Data), with the shape as int64
//
// Whether they copy Data decides when the batch may be given back: those above that do not need it until their tensor
// has been used.
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
		loader.Recycle(batch) // once the model is done with it
	}
	// Output: [2 2 2] [1 2 3 4 5 6 7 8]
}

// Where the time goes, in one line: loading takes five times as long as training, so that five workers keep up.
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
	for range loader.Epoch(context.Background(), 0) {
		time.Sleep(time.Millisecond) // train
	}
	line := stats.String() // here "10 batches, 100 samples (1600/s), …: the loader is the bottleneck, workers needed: 5"
	fmt.Println(line[:strings.Index(line, " (")])
	// Output: 10 batches, 100 samples
}

// On a terminal Progress(os.Stderr, …) shows a bar.
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

// TestReadme takes the programs out of README.md, puts each into a module beside a copy of this package and runs it; and
// looks for the Examples, benchmarks and files that are named there.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []byte // of the source
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "dataloader"), 0o777), os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.org/trainer\n\ngo 1.25\n"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, data...); !strings.HasSuffix(name, "_test.go") {
			if err := os.WriteFile(filepath.Join(dir, "dataloader", name), data, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	programs := 0
	for _, block := range strings.Split(string(readme), "```go\n")[1:] {
		program, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(program, "package main\n") {
			t.Errorf("this is no program:\n%s", program)
			continue
		}
		programs++
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", "run", ".")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil || len(out) == 0 {
			t.Errorf("program %d: %v\n%s", programs, err, out)
		}
	}
	if lines := bytes.Count(readme, []byte("\n")); programs < 3 || lines > 250 {
		t.Errorf("%d programs in %d lines", programs, lines)
	}
	for _, name := range regexp.MustCompile("`(Example|Test|Fuzz|Benchmark)\\w+`").FindAllString(string(readme), -1) {
		if name = strings.Trim(name, "`"); !bytes.Contains(all, []byte("func "+name+"(")) {
			t.Errorf("there is no %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([\w/.]+)\)`).FindAllStringSubmatch(string(readme), -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Error(err)
		}
	}
}
