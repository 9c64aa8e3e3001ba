package dataloader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
	return slices.Clone(indices)[:len(indices)-d.short], d.err
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
				equal(t, "outcomes", outcomes(loader.Epoch(t.Context(), 0)),
					"[[1 2] [3 4 5] [9 10 11] error more than 4 bad samples: dataloader: epoch 0, batch 4, sample 13: bad sample [15 16 17] error more than 4 bad samples: dataloader: epoch 0, batch 6, sample 19: bad sample]")
				equal(t, "heard", heard, "[0:0 2:6 2:7 2:8 4:13 6:19]")

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
			for batch := range loader.Run(t.Context(), &Cursor{Epoch: 3, Pos: 2, State: loaderState{Order: "Sequential(12)"}}) {
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
	ahead := Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", []run{{1, 2}}, &Shard{0, 1}, 2}}
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
		{"no state", 20, base, Cursor{Pos: 4}, []string{"another stream", "pos 4"}},
		{"state of another kind", 20, base, Cursor{Pos: 4, State: "here"}, []string{"does not fit", "pos 4"}},
		{"beyond the end", 20, base, Cursor{Pos: 21, State: at.State}, []string{"pos 21", "at most 20"}},
		{"negative", 20, base, Cursor{Epoch: -1}, []string{"epoch -1", "must not be negative"}},
		{"out of order, other shard", 20, other(func(o *Options) { o.Shard = Shard{0, 2} }), ahead, []string{"out of order", "{0 1}", "{0 2}"}},
		{"out of order, other size", 20, other(func(o *Options) { o.BatchSize = 3 }), ahead, []string{"out of order", "batches of 2", "batches of 3"}},
		{"damaged", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", []run{{5, 4}}, &Shard{0, 1}, 2}}, []string{"damaged", "[5 4]"}},
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
	f.Add([]byte(`{"epoch":1,"pos":4,"state":{"order":"Random(20, seed 1)"}}`))
	f.Add([]byte(`{"epoch":1,"pos":0,"state":{"order":"Random(20, seed 1)","done":[[1,3],[5,6]],"shard":{"Index":0,"Count":1},"size":2}}`))
	f.Add([]byte(`{"epoch":1,"pos":4,"state":{"order":"Random(20, seed 1)","done":[[1,9223372036854775807]],"shard":{"Index":0,"Count":1},"size":2}}`))
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
	f.Fuzz(func(t *testing.T, n, from, count, size, tail int) {
		n, count, size, tail = int(uint(n)%200), 1+int(uint(count)%9), 1+int(uint(size)%20), int(uint(tail)%3)
		from = int(uint(from) % uint(n+1))
		seen := make([]int, n)
		shares := map[int]bool{}
		for rank := range count {
			d := deal{from: from, n: n, size: min(size, n+1), shard: Shard{rank, count}, tail: Tail(tail)}
			shares[d.share()] = true
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
