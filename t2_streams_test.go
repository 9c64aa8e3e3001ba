package dataloader

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

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
			if err != nil {
				t.Fatalf("after %d items: %v", len(want), err)
			}
			if item.Err != nil {
				equal(t, "the value of a failed item", item.Value, *new(T))
				item.Err = itemError(item.Next, item.Err)
			}
			want = append(want, outcomes(one(item.Value, item.Err))...)
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
		for k := range len(want) + 1 {
			stopped := errors.New("stopped")
			ctx, cancel := context.WithCancelCause(t.Context())
			if k == 0 {
				cancel(stopped)
			}
			at, n := cursors[0], 0
			var end error
			for _, err := range s.Run(ctx, &at) {
				if failed := (*SampleError)(nil); err != nil && !errors.As(err, &failed) {
					end = err
				} else if n++; n == k {
					cancel(stopped)
				}
			}
			// Only FromSeq, which cannot know whether its sequence has stopped early, may be stopped after the last item.
			if complete := k == len(want) && end == nil && at == (Cursor{Epoch: epoch + 1}); n != k || end != stopped && !complete {
				t.Fatalf("stopped after %d of %d items: %d came, and then %v", k, len(want), n, end)
			}
			if end != nil {
				rest := outcomes(s.Run(t.Context(), &at))
				equal(t, "what a stop has left", rest[max(0, len(rest)-len(want)+k):], want[k:])
			}
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
		equal(t, "value and error", fmt.Sprint(value, err), "0 dataloader: epoch 0, the item before pos 1: bad sample")
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
		equal(t, "an empty source", got[len(got)-1], "error dataloader: Mix: source 1 has no items in epoch 2")
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
					equal(t, "f", got, "[0 error Map: "+what+" 2]")
				}
				got := outcomes(source.Prefetch(workers+1).Epoch(t.Context(), 0))
				if len(got) != 2 || !strings.HasSuffix(got[1], what) {
					t.Errorf("Prefetch: %s", got)
				}
			})
		}
	}
	dead := "panic: ouch"
	equal(t, "source", outcomes(FromSeq(func(context.Context, int) iter.Seq2[int, error] { panic("ouch") }).Epoch(t.Context(), 3)), "[error dataloader: epoch 3: "+dead+"]")
	equal(t, "Filter", outcomes(counting(3).Filter(func(i int) bool {
		if i == 1 {
			panic("ouch")
		}
		return true
	}).Epoch(t.Context(), 0)), "[0 error Filter: "+dead+" 2]")
	equal(t, "Batch", outcomes(Batch(counting(3), 2, func(_ []int, samples []int) ([]int, error) {
		if len(samples) == 2 {
			panic("ouch")
		}
		return List(nil, samples)
	}).Epoch(t.Context(), 0)), "[error Batch: "+dead+" [2]]")
	equal(t, "Indices", outcomes(Indices(OrderFunc(2, func(int) []int { panic("ouch") })).Epoch(t.Context(), 0)), "[error dataloader: Indices: epoch 0: "+dead+"]")
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
				if err != nil {
					t.Fatal(err)
				}
				first = append(first, outcomes(one(item.Value, item.Err))...)
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

// TestBadStreams: arguments that can never be right panic, with what was given and what is allowed. A stage that finds its
// source empty for ever ends with that error, wherever it stands in a pipeline.
func TestBadStreams(t *testing.T) {
	s := counting(3)
	var none Stream[int]
	for _, c := range []struct {
		make func()
		says string
	}{
		{func() { s.Filter(nil) }, "Filter: keep is nil"},
		{func() { s.Take(-1) }, "Take: n is -1, must not be negative"},
		{func() { s.Shard(Shard{2, 2}) }, "Stream.Shard: Shard is {Index: 2, Count: 2}; Count must be 0 to 1048576, and Index 0 to 1"},
		{func() { s.Shuffle(0, 1) }, "Shuffle: the window is 0, must be at least 1"},
		{func() { s.Prefetch(0) }, "Prefetch: n is 0, must be 1 to"},
		{func() { FromSeq[int](nil) }, "FromSeq: seq is nil"},
		{func() { Indices(nil) }, "Indices: the sampler is nil"},
		{func() { Map(s, -1, quick) }, "Map: workers is -1, must be 0 to"},
		{func() { Map[int, int](s, 1, nil) }, "Map: f is nil"},
		{func() { Batch(s, 0, List[int]) }, "Batch: size is 0, must be positive"},
		{func() { Batch[int, []int](s, 1, nil) }, "Batch: the Collate is nil"},
		{func() { Mix[int](MixOptions{}) }, "Mix: there is no source"},
		{func() { Mix(MixOptions{Weights: []float64{1}}, s, s) }, "Mix: there are 1 weights for 2 sources"},
		{func() { Mix(MixOptions{Weights: []float64{1, 0}}, s, s) }, "Mix: Weights[1] is 0, must be positive and finite"},
		{func() { Mix(MixOptions{Weights: []float64{math.NaN()}}, s) }, "Mix: Weights[0] is NaN"},
		{func() { Mix(MixOptions{Weights: []float64{math.Inf(1)}}, s) }, "Mix: Weights[0] is +Inf"},
		{func() { Mix(MixOptions{Stop: 9}, s) }, "Mix: Stop is 9, must be StopAtFirst"},
		{func() { Mix(MixOptions{Stop: -1}, s) }, "Mix: Stop is -1"},
		{func() { none.Filter(func(int) bool { return true }) }, "Filter: the stream is nil"},
		{func() { none.Take(1) }, "Take: the stream is nil"},
		{func() { none.Repeat(2) }, "Repeat: the stream is nil"},
		{func() { none.Shard(Shard{}) }, "Stream.Shard: the stream is nil"},
		{func() { none.Shuffle(2, 1) }, "Shuffle: the stream is nil"},
		{func() { none.Prefetch(2) }, "Prefetch: the stream is nil"},
		{func() { Chain(s, nil) }, "Chain: stream 1 is nil"},
		{func() { Mix(MixOptions{}, s, nil) }, "Mix: stream 1 is nil"},
		{func() { Map(nil, 1, quick) }, "Map: the stream is nil"},
		{func() { Unbatch[int](nil) }, "Unbatch: the stream is nil"},
		{func() { Batch(none, 1, List[int]) }, "Batch: the stream is nil"},
		{func() { Zip[int](s, none) }, "Zip: the second stream is nil"},
		{func() { Zip(none, s) }, "Zip: the first stream is nil"},
	} {
		mustPanic(t, c.make, "dataloader: "+c.says)
	}
	for name, s := range map[string]Stream[int]{
		"Repeat(0): the stream has no items in epoch 0": counting(0).Repeat(0),
		"Mix: source 0 has no items in epoch 0":         Mix(MixOptions{Stop: CycleForever}, counting(0)),
	} {
		equal(t, name, outcomes(Map(s.Prefetch(2).Shuffle(2, 0), 2, quick).Epoch(t.Context(), 0)), "[error dataloader: "+name+"]")
	}
}

// TestSkippingLoop: the loop of the package comment, which skips every *SampleError and returns any other error, ends when
// its context is cancelled and when its cursor is refused, for loaders and streams and any number of workers. That is so
// even if the cause of the context is a *SampleError itself.
func TestSkippingLoop(t *testing.T) {
	skipping := func(ctx context.Context, run func(context.Context, *Cursor) iter.Seq2[[]int, error], at *Cursor, epochs int, body func(batch []int)) (skipped int, err error) {
		for at.Epoch < epochs {
			for batch, err := range run(ctx, at) {
				if bad := (*SampleError)(nil); errors.As(err, &bad) {
					skipped++
					continue
				} else if err != nil {
					return skipped, err
				}
				body(batch)
			}
		}
		return skipped, nil
	}
	own := Stream[[]int](func(ctx context.Context, from Cursor) iter.Seq2[Item[[]int], error] { // whose errors are plain
		return func(yield func(Item[[]int], error) bool) {
			if s, ok := from.State.(string); from.Pos > 0 && (!ok || s != "own") {
				yield(Item[[]int]{}, errors.New("not my cursor"))
				return
			}
			for pos := from.Pos; pos < 10; pos++ {
				if ctx.Err() != nil {
					yield(Item[[]int]{}, context.Cause(ctx))
					return
				}
				item := Item[[]int]{Value: []int{pos}, Next: Cursor{from.Epoch, pos + 1, "own"}}
				if pos%3 == 1 {
					item.Value, item.Err = nil, errBad
				}
				if !yield(item, nil) {
					return
				}
			}
		}
	})
	for workers := range 3 {
		loader := newLoader(t, failing(10, 1, 4, 7), Options{Workers: workers})
		f := func(_ context.Context, i int) (int, error) {
			if i%3 == 1 {
				return 0, errBad
			}
			return i, nil
		}
		for name, run := range map[string]func(context.Context, *Cursor) iter.Seq2[[]int, error]{
			"loader": loader.Run, "stream of the loader": loader.Stream().Run, "stream": Batch(Map(Indices(Sequential(10)), workers, f), 1, List[int]).Run,
			"own": own.Run, "own, prefetched": own.Prefetch(workers + 1).Run, "FromSeq": Batch(counting(10, 1, 4, 7), 1, List[int]).Run,
		} {
			var at Cursor
			batches := 0
			skipped, err := skipping(t.Context(), run, &at, 2, func([]int) { batches++ })
			equal(t, name, fmt.Sprint(batches, skipped, err, at), fmt.Sprint(14, 6, error(nil), Cursor{Epoch: 2}))

			at = Cursor{Pos: 3, State: "another"}
			if _, err := skipping(t.Context(), run, &at, 2, func([]int) {}); err == nil || at.Pos != 3 {
				t.Errorf("%s: refused with %v, at %v", name, err, at)
			}
			for _, cause := range []error{errors.New("stopped"), fmt.Errorf("wrapped: %w", &SampleError{Err: io.ErrNoProgress})} {
				at = Cursor{}
				ctx, cancel := context.WithCancelCause(t.Context())
				_, err := skipping(ctx, run, &at, 2, func(batch []int) {
					if batch[0]%100 == 5 {
						cancel(cause)
					}
				})
				cancel(nil)
				if !errors.Is(err, cause) || at.Pos != 6 {
					t.Errorf("%s: ended with %v at %v, want %v at pos 6", name, err, at, cause)
				}
			}
		}
	}
}

// TestLastItemHandedOver: the end of an epoch counts once its last item has been handed over, even if the context ends in
// the body of that item, for any number of workers.
func TestLastItemHandedOver(t *testing.T) {
	for workers := range 4 {
		s := Map(Indices(Sequential(6)), workers, quick)
		loader := newLoader(t, numbers(6), Options{Workers: workers})
		for name, s := range map[string]Stream[int]{
			"Map": s, "Prefetch": s.Prefetch(workers + 1), "Take": Indices(Sequential(9)).Take(6), "Shuffle": s.Shuffle(4, 1), "Unbatch": Unbatch(loader.Stream()),
			"Map of Prefetch": Map(s.Prefetch(2), workers, quick), "Filter": Indices(Sequential(11)).Filter(func(i int) bool { return i%2 == 0 }).Prefetch(3),
			"Mix": Mix(MixOptions{Stop: StopAtLast}, Indices(Sequential(2)), Indices(Sequential(4)).Prefetch(2)), "Repeat": Indices(Sequential(3)).Repeat(2),
			"Chain": Chain(Indices(Sequential(3)), Indices(Sequential(3)).Prefetch(1)), "Shard": Indices(Sequential(12)).Shard(Shard{1, 2}),
		} {
			synctest.Test(t, func(t *testing.T) {
				for wait := range 2 {
					for last := 1; last <= 6; last++ {
						ctx, cancel := context.WithCancelCause(t.Context())
						defer cancel(nil)
						var at Cursor
						n := 0
						var end error
						for _, err := range s.Run(ctx, &at) {
							if n++; err != nil {
								end = err
							} else if n == last {
								if wait == 1 { // until the workers have read all they may
									synctest.Wait()
								}
								cancel(errBad)
							}
						}
						if complete := end == nil && at == (Cursor{Epoch: 1}); complete != (last == 6) || !complete && (end != errBad || n != last+1) {
							t.Errorf("%s, %d workers: cancelled after item %d: %v, at %v", name, workers, last, end, at)
						}
					}
				}
			})
		}
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
			"20 batches, 40 samples (38/s), 0 dropped; waited 43 % of 1.06s, 0 % with the next batch ready; workers: 2, 94 % busy: the loader is the bottleneck, workers needed: 4"},
		{"loader alone", Options{}, 10, func(int) time.Duration { return 100 * ms }, 30 * ms,
			"10 batches, 10 samples (8/s), 0 dropped; waited 77 % of 1.3s, 0 % with the next batch ready: the loader is the bottleneck, workers needed: 4"},
		{"no training", Options{Workers: 1}, 10, func(int) time.Duration { return 100 * ms }, 0,
			"10 batches, 10 samples (10/s), 0 dropped; waited 100 % of 1s, 0 % with the next batch ready; workers: 1, 100 % busy: the loader is the bottleneck, the loop takes no time of its own"},
		// Only the first batch is waited for.
		{"many", Options{Workers: 1}, 11, func(int) time.Duration { return 100 * ms }, 10 * ms,
			"11 batches, 11 samples (10/s), 0 dropped; waited 90 % of 1.11s, 0 % with the next batch ready; workers: 1, 99 % busy: the loader is the bottleneck, workers needed: 10, if they wait rather than compute; to compute there are 8 CPUs"},
		{"training", Options{Workers: 4}, 20, func(int) time.Duration { return 20 * ms }, 100 * ms,
			"20 batches, 20 samples (10/s), 0 dropped; waited 1 % of 2.02s, 0 % with the next batch ready; workers: 4, 5 % busy: the training is the bottleneck, workers needed: 1"},
		{"training alone", Options{}, 20, func(int) time.Duration { return 1 * ms }, 100 * ms,
			"20 batches, 20 samples (10/s), 0 dropped; waited 1 % of 2.02s, 0 % with the next batch ready: the training is the bottleneck, workers needed: 0"},
		// From 50 to 210 the loop waits for batch 2, behind which 3 to 5 are ready.
		{"slow batch", Options{Workers: 2}, 12, func(i int) time.Duration {
			if i == 2 {
				return 200 * ms
			}
			return 10 * ms
		}, 20 * ms,
			"12 batches, 12 samples (29/s), 0 dropped; waited 41 % of 410ms, 39 % with the next batch ready; workers: 2, 38 % busy: slow batches block the batches behind them, raise Prefetch or set Unordered"},
		// The same out of order: the others come meanwhile, each 20 after the one before, and the slow one as the last but one.
		{"slow batch out of order", Options{Workers: 2, Unordered: true}, 12, func(i int) time.Duration {
			if i == 2 {
				return 200 * ms
			}
			return 10 * ms
		}, 20 * ms,
			"12 batches, 12 samples (48/s), 0 dropped; waited 4 % of 250ms, 0 % with the next batch ready; workers: 2, 62 % busy: the training is the bottleneck, workers needed: 2"},
		// Batches 0, 4, 8, … take 60, the others 10: 30 on the average of 30 that two workers need.
		{"uneven", Options{Workers: 1, Prefetch: 1}, 9, func(i int) time.Duration {
			if i%4 == 0 {
				return 60 * ms
			}
			return 10 * ms
		}, 30 * ms,
			"9 batches, 9 samples (23/s), 0 dropped; waited 31 % of 390ms, 0 % with the next batch ready; workers: 1, 62 % busy: the loader keeps up on average but not always, raise Prefetch"},
		{"bad samples", Options{BatchSize: 2, OnError: func(*SampleError) error { return nil }}, 20, func(i int) time.Duration {
			if i < 5 {
				return -1
			}
			return 50 * ms
		}, 30 * ms,
			"10 batches, 15 samples (15/s), 5 dropped; waited 76 % of 983ms, 0 % with the next batch ready: the loader is the bottleneck, workers needed: 4"},
		// Batch 0 comes at 100, and batch 1, which waits for it, is ready at 60.
		{"first batch slow", Options{Workers: 2}, 4, func(i int) time.Duration { return []time.Duration{100, 60, 10, 10}[i] * ms }, 10 * ms,
			"4 batches, 4 samples (29/s), 0 dropped; waited 71 % of 140ms, 29 % with the next batch ready; workers: 2, 64 % busy: a few batches are so slow that the loop waits for them while workers are idle"},
		{"two batches", Options{}, 2, func(int) time.Duration { return 10 * ms }, 10 * ms,
			"2 batches, 2 samples (50/s), 0 dropped; waited 50 % of 40ms, 0 % with the next batch ready: loading and training take turns, a worker would load during training"},
		{"one batch", Options{}, 1, func(i int) time.Duration { return ms }, ms, "1 batches in 1 loops: too few to tell, since training is timed between two batches of a loop"},
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
		equal(t, "three epochs", stats, "60 batches, 60 samples (16/s), 0 dropped; waited 51 % of 3.69s, 0 % with the next batch ready; workers: 1, 98 % busy: the loader is the bottleneck, workers needed: 2")
	})
	// Training that is never timed is unknown: 11 loops of one batch, 0.7 ms to load and 61 ms to train.
	synctest.Test(t, func(t *testing.T) {
		stats := new(Stats)
		loader := newLoader(t, Func(1, func(_ context.Context, i int) (int, error) {
			time.Sleep(700 * time.Microsecond)
			return i, nil
		}), Options{Workers: 1, Trace: stats.Observe})
		for epoch := range 11 {
			for range loader.Epoch(t.Context(), epoch) {
				time.Sleep(61 * ms)
			}
		}
		equal(t, "short loops", stats, "11 batches in 11 loops: too few to tell, since training is timed between two batches of a loop")
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
		saysAll(t, errors.New(stats.String()), "50 batches", "waited 17 %", "the loader keeps up after the first batch of a loop; loops: 10")
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
		saysAll(t, errors.New(stats.String()), "200 batches", "waited 100 % of 1s", " 0 % with the next")
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
		return i, nil
	}), Options{Workers: 2, BatchSize: 1})
	collect(t, loader.Epoch(t.Context(), 0))
	for range 4 {
		<-labels
	}
	source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] {
		label, _ := pprof.Label(ctx, "dataloader")
		labels <- label
		return one(1, nil)
	})
	collect(t, source.Prefetch(2).Epoch(t.Context(), 0))
	equal(t, "who reads for Prefetch", <-labels, "reader")
	collect(t, Map(source, 1, quick).Epoch(t.Context(), 0))
	equal(t, "who reads for Map", <-labels, "reader")
	if running {
		trace.Stop()
		for _, name := range []string{"batch", "epoch 0, batch 1", "fetch", "collate"} {
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
