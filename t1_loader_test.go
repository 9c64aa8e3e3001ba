package dataloader

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

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
				if err != nil && (!errors.Is(err, errBad) || !errors.As(err, &sample) || *sample != SampleError{Epoch: 5, Batch: 1, Index: 3, Err: errBad}) {
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
				if !strings.Contains(name, "Goexit") { // OnError and Order are called in the caller's goroutine
					check("OnError", "[[0 1] error dataloader: epoch 0, batch 1, sample 2: OnError: DIES [4 5]]", failing(6, 2), List[int],
						Options{OnError: func(*SampleError) error { die(); return nil }})
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
				budget := 4
				opts := Options{BatchSize: 3, Workers: workers, Unordered: unordered, OnError: func(e *SampleError) error {
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
				_, err := loader.Batch(t.Context(), 0, 2)
				saysAll(t, err, "batch 2", "all samples were dropped")
			})
		}
	}
}

// TestOnErrorAtOnce: two loops over one loader ask OnError at the same time; neither waits for the other.
func TestOnErrorAtOnce(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			loader := newLoader(t, failing(3, 0, 1, 2), Options{Workers: workers, OnError: func(*SampleError) error {
				time.Sleep(time.Hour)
				return nil
			}})
			start := time.Now()
			var loops sync.WaitGroup
			for range 2 {
				loops.Go(func() {
					for range loader.Epoch(t.Context(), 0) {
					}
				})
			}
			loops.Wait()
			equal(t, "time", time.Since(start), 3*time.Hour)
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
			"[error dataloader: epoch 0, batch 0, sample 0: OnError: bad sample error dataloader: epoch 0, batch 2: collating 1 samples [5]: collate error dataloader: epoch 0, batch 3: collating 1 samples [6]: collate]")
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
			saysAll(t, err, "epoch 0", "batch 0", "Stack: sample", "[1]", "[2]", "collating 3 samples [")
		}
	}
	many := must(New(numbers(20), func(dst []int, samples []int) ([]int, error) { return nil, errBad }, Options{BatchSize: 20}))
	_, err := many.Batch(t.Context(), 0, 0)
	saysAll(t, err, "20 samples [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]: bad sample")
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
	ahead := Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []span{{1, 2}}, &Shard{0, 1}, 2}}
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
		{"beyond the steps", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []span{{5, 10}}, &Shard{0, 1}, 2}}, []string{"damaged", "steps of 9"}},
		{"touching the mark", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []span{{0, 2}}, &Shard{0, 1}, 2}}, []string{"damaged"}},
		{"touching each other", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []span{{1, 2}, {2, 3}}, &Shard{0, 1}, 2}}, []string{"damaged"}},
		{"damaged", 20, base, Cursor{Pos: 2, State: loaderState{"Random(20, seed 1)", 1, []span{{5, 4}}, &Shard{0, 1}, 2}}, []string{"damaged", "[5 4]"}},
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
		{first(must(Weighted(weights, 6, true, 0)), 0, 6), "[1 1 4 5 4 3]"},
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
	saysAll(t, err, "length", strconv.Itoa(math.MaxInt), "must be 0 to")
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
		{Options{Shard: Shard{1, 0}}, []string{"Options.Shard", "Index: 1", "set Count"}},
		{Options{Shard: Shard{0, -1}}, []string{"Options.Shard", "Count: -1", "must be 0 to"}},
		{Options{Tail: 7}, []string{"Options.Tail is 7", "UnevenTail"}},
		{Options{Tail: -1}, []string{"Options.Tail is -1"}},
		{Options{Sampler: samplerFunc{n: -3}}, []string{"samplerFunc", "-3", "must be 0 to"}},
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
	mustPanic(t, func() { RandomWithReplacement(0, 1, 0) }, "count is 1", "no samples")
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
		{"*.jpg", `pattern "*.jpg": it matches no file`},
		{"cow/*.png", `pattern "cow/*.png": it matches no file`},
		{"", `pattern "": it matches no file`},
		{"a/[", "syntax error in pattern"},
		{"../x", "matches no file"},
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
