package dataloader

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"os"
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

// The tests of the second reading: streams and where the time goes, in the order of the rooms.

// A feed is the stream 0, 1, …, n-1, plus 100 times the epoch, made of a sequence. It counts how the sequence is read.
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

// quick returns i.
func quick(_ context.Context, i int) (int, error) { return i, nil }

// head returns the first element of a batch.
func head(_ context.Context, b []int) (int, error) { return b[0], nil }

// double returns twice i, slowly, with some random noise. Every 17th number fails, with a value beside the error.
func double(ctx context.Context, i int) (int, error) {
	time.Sleep(time.Duration(Rand(ctx).IntN(1000)))
	if i%17 == 16 {
		return i, errBad
	}
	return 2*i + 10000*Rand(ctx).IntN(3), nil
}

// one is a sequence of one pair.
func one[T any](v T, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) { yield(v, err) }
}

// ptr is a pointer to a copy of v.
func ptr[T any](v T) *T { return &v }

type ints = Stream[int]

// own is a stream that is written by hand, with cursors of its own: batches of one of the numbers 0 to 9, of which 1, 4 and 7
// fail with a plain error.
func own(ctx context.Context, from Cursor) iter.Seq2[Item[[]int], error] {
	return func(yield func(Item[[]int], error) bool) {
		var by string
		if err := from.Load(&by); err != nil || by != "own" && from.Pos > 0 {
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
}

// cursors are the cursors of epoch 0 of a stream: the start, and the one after each item.
func cursors[T any](t *testing.T, s Stream[T]) []Cursor {
	t.Helper()
	all := []Cursor{{}}
	for item, err := range s(t.Context(), Cursor{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, item.Next)
	}
	return all
}

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

// stages are all stages, made of a stream and, if they join streams, of another one. n varies their other arguments; there
// are n/4%4 workers. No stage leaves out an item because i%4 is 1.
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
	{"Mix", func(s ints, n int, other func() ints) ints { return Mix(MixOptions{Stop: Stop(n / 4 % 2)}, s, other()) }},
	{"Mix", func(s ints, n int, other func() ints) ints {
		return Mix(MixOptions{Weights: []float64{1, float64(n%4) + .5}, Seed: uint64(n), Stop: Stop(n / 4 % 2)}, s, other())
	}},
	{"Shard", func(s ints, n int, _ func() ints) ints { return s.Shard(Shard{n % 3, 3}) }},
	{"Batch", func(s ints, n int, _ func() ints) ints { return Unbatch(Batch(s, n%4+1, List[int])) }},
	{"Map", func(s ints, n int, _ func() ints) ints { return Map(s, n/4%4, double) }},
	{"Prefetch", func(s ints, n int, _ func() ints) ints { return s.Prefetch(n%5 + 1) }},
}

// add returns the sum of a pair.
func add(_ context.Context, p Pair[int, int]) (int, error) { return p.First + p.Second, nil }

// behind yields the streams that the stages make of s, with their names.
func behind(s ints, n int) iter.Seq2[string, ints] {
	return func(yield func(string, ints) bool) {
		for _, stage := range stages {
			if !yield(fmt.Sprintf("%s, n %d", stage.name, n), stage.of(s, n, func() ints { return s.Shuffle(3, 3) })) {
				return
			}
		}
	}
}

// checkStream puts an epoch of a stream through everything that a stream promises, and returns the epoch's outcomes. A
// failed item has no value, and is a position like any other. Positions grow. Every cursor resumes the stream, and never
// changes. Two iterations at once do not meet. An ended context is the last pair. Nothing leaves a goroutine.
func checkStream[T any](t *testing.T, s Stream[T], epoch int) (want []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		at := Cursor{Epoch: epoch}
		cursors, saved := []Cursor{at}, []string{at.text()}
		another, stop := iter.Pull2(s.Epoch(t.Context(), epoch))
		defer stop()
		for item, err := range s(t.Context(), at) {
			if err != nil {
				t.Fatalf("after %d items: %v", len(want), err)
			}
			if item.Err != nil {
				equal(t, "the value of a failed item", item.Value, *new(T))
				item.Err = itemError(item.Next, item.Err)
			}
			if item.Next.Epoch != epoch || item.Next.Pos <= at.Pos {
				t.Fatalf("item %d: next is epoch %d, pos %d, after pos %d", len(want), item.Next.Epoch, item.Next.Pos, at.Pos)
			}
			at = item.Next
			cursors, saved = append(cursors, at), append(saved, at.text())
			now := outcomes(one(item.Value, item.Err))
			want = append(want, now...)
			value, err, _ := another()
			equal(t, "two at once", outcomes(one(value, err)), now)
		}
		_, _, more := another()
		equal(t, "another item", more, false)
		for k, c := range cursors {
			checkResume(t, s, c, want[k:])
			checkStop(t, s, epoch, k, want, false)
		}
		for k, c := range cursors {
			equal(t, "a cursor some time later", c.text(), saved[k])
		}
	})
	return want
}

// checkResume resumes a stream at a cursor: in one run, in which the cursor may come from JSON, and in many runs, each left
// after the same number of successes.
func checkResume[T any](t *testing.T, s Stream[T], from Cursor, want []string) {
	t.Helper()
	for _, at := range []Cursor{from, throughJSON(t, from)} {
		equal(t, fmt.Sprintf("from %v", from), outcomes(s.Run(t.Context(), &at)), want)
		equal(t, "then", at, Cursor{Epoch: from.Epoch + 1})
	}
	got, each := []string{}, 1+len(want)%3
	for at := from; at.Epoch == from.Epoch && len(got) <= len(want); at = throughJSON(t, at) {
		n := 0
		for value, err := range s.Run(t.Context(), &at) {
			got = append(got, outcomes(one(value, err))...)
			if err == nil {
				n++
			}
			if n == each {
				break
			}
		}
	}
	equal(t, fmt.Sprintf("from %v, in runs of %d", from, each), got, want)
}

// checkStop ends the context while the loop has item k, or before the first, possibly because of a *SampleError. The ended
// context is the last pair, and no *SampleError. What has not come comes after a resume. After the last item the epoch is
// complete; if not exact, it may be stopped then too: FromSeq cannot know whether its sequence has stopped early.
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

// All rooms: what every stream promises.

// TestStreams: each stage, alone and deep in others, keeps every promise of a stream, in epoch 0, whose cursors are nearly
// zero, and in epoch 2. What it yields in epoch 2 tells which epochs it has read.
func TestStreams(t *testing.T) {
	spoiled := func([]int, []int) ([]int, error) { return []int{7}, errBad }
	odd := func(i int) bool { return i%2 == 1 }
	empty := counting(0)
	deep := func(workers int) Stream[[]int] {
		last := Mix(MixOptions{Stop: StopAtLast}, counting(13, 4).Prefetch(2), counting(5), counting(9, 0, 8))
		mixed := Mix(MixOptions{Weights: []float64{2, 1}, Seed: 5, Stop: CycleUntilLast}, Map(last.Shuffle(4, 1), workers, double), counting(7))
		return Batch(mixed, 3, List[int]).Prefetch(2)
	}
	for _, c := range []struct {
		name  string
		check func(t *testing.T, epoch int) []string
		want  string // in epoch 2, if it is to be compared
	}{
		{"FromSeq", of(counting(4, 0, 3)), "[error item 0 is bad 201 202 error item 3 is bad]"},
		{"Filter", of(counting(9, 3).Filter(odd)), "[201 error item 3 is bad 205 207]"},
		{"Take", of(counting(9, 1).Take(3)), "[200 error item 1 is bad 202]"},
		{"Take more", of(counting(3).Take(10)), "[200 201 202]"},
		{"Take none", of(counting(3).Take(0)), "[]"},
		{"Repeat", of(counting(2, 1).Repeat(3)), "[600 error item 1 is bad 700 error item 1 is bad 800 error item 1 is bad]"},
		{"Repeat forever", of(counting(2).Repeat(0).Take(5)), "[200 201 300 301 400]"},
		{"Chain", of(Chain(counting(2), empty, counting(3, 0))), "[200 201 error item 0 is bad 201 202]"},
		{"Zip", of(Zip(counting(4, 1), counting(3, 2))), "[{200 200} error item 1 is bad error item 2 is bad]"},
		{"Zip, second longer", of(Zip(counting(2), letters("abc"))), "[{200 a} {201 b}]"},

		{"Indices", of(Indices(OrderFunc(3, func(e int) []int { return []int{e, 0, 1} }))), "[2 0 1]"},
		{"Shuffle 1", of(counting(4).Shuffle(1, 1)), "[200 201 202 203]"},
		{"Mix first", of(Mix(MixOptions{}, letters("a"), letters("bB"), letters("cCc"))), "[a b c]"},
		{"Mix last", of(Mix(MixOptions{Stop: StopAtLast}, letters("a"), letters("bB"), letters("cCx"))), "[a b c B C x]"},
		{"Mix last, one empty", of(Mix(MixOptions{Stop: StopAtLast}, empty, counting(2))), "[200 201]"},
		{"Mix cycle", of(Mix(MixOptions{Stop: CycleUntilLast}, counting(1), counting(2), counting(3, 1))), "[200 200 200 300 201 error item 1 is bad 400 300 202 500 301]"},
		{"Mix forever", of(Mix(MixOptions{Stop: CycleForever}, counting(1), counting(2)).Take(7)), "[200 200 300 201 400 300 500]"},
		{"Mix by weight, cycle", of(Mix(MixOptions{Weights: []float64{1, 3, .5}, Seed: 3, Stop: CycleUntilLast}, counting(2), counting(6), counting(3))), ""},
		{"Shard", of(counting(8, 4).Shard(Shard{1, 3})), "[201 error item 4 is bad 207]"},
		{"Shard, zero", of(counting(3).Shard(Shard{})), "[200 201 202]"},

		{"Batch", of(Batch(counting(7, 4, 5), 2, List[int])), "[[200 201] [202 203] error item 4 is bad [206]]"},
		{"Batch, spoiled", of(Batch(counting(3, 2), 2, spoiled)), "[error Batch: bad sample error item 2 is bad]"},
		{"Unbatch", of(Unbatch(Batch(counting(5, 2), 2, List[int]))), "[200 201 error item 2 is bad 204]"},
		{"Unbatch, empty batches", of(Unbatch(Map(counting(4), 0, func(_ context.Context, i int) ([]int, error) { return make([]int, i%3), nil }))), "[0 0 0 0 0]"},

		{"Map, 3 workers", of(Map(counting(20, 5), 3, double)), fmt.Sprint(outcomes(Map(counting(20, 5), 0, double).Epoch(t.Context(), 2)))},
		{"Prefetch", of(counting(5, 2).Prefetch(2)), "[200 201 error item 2 is bad 203 204]"},

		{"by hand", of(Stream[[]int](own)), "[[0] error bad sample [2] [3] error bad sample [5] [6] error bad sample [8] [9]]"},
		{"nothing", of(Chain(Chain[int](), empty.Filter(odd), counting(3).Filter(func(int) bool { return false }), empty.Take(2), empty.Repeat(3),
			empty.Shuffle(5, 1), empty.Shard(Shard{1, 2}), Unbatch(Batch(empty, 2, List[int])), Map(empty, 3, quick), empty.Prefetch(3))), "[]"},
		{"deep", of(deep(2)), fmt.Sprint(outcomes(deep(0).Epoch(t.Context(), 2)))},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.check(t, 0)
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
		switch n := next(); n % 4 {
		case 0:
			return counting(n / 4 % 12)
		case 1:
			return counting(n/4%12, n/8%7, n/16%5)
		case 2:
			return Indices(Random(n/4%12, uint64(n)))
		default:
			opts := Options{BatchSize: 1 + n%3, Shuffle: true, Workers: n % 3, Tail: UnevenTail}
			return Unbatch(must(New(numbers(n/4%12), List[int], opts)).Stream())
		}
	}
	s := source()
	for k := 0; k < 6 && len(program) > 0; k++ {
		s = stages[next()%len(stages)].of(s, next(), source)
	}
	return s.Take(60)
}

// FuzzStreams: compositions at random keep every promise too.
func FuzzStreams(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 3))
	for range 100 {
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

// TestSkippingLoop: a loop that skips every *SampleError and leaves at any other error, as in the package comment, ends when
// its context is cancelled and when its cursor is refused, for loaders and streams and any number of workers. (checkStop
// cancels all other streams.)
func TestSkippingLoop(t *testing.T) {
	const summary = "%d batches, %d skipped, epoch %d, pos %d, complete %t, cancelled %t"
	loop := func(run func(context.Context, *Cursor) iter.Seq2[[]int, error], at Cursor, stop int) string {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		batches, skipped, err := 0, 0, error(nil)
		for at.Epoch < 2 && err == nil {
			for _, err = range run(ctx, &at) {
				if errors.As(err, new(*SampleError)) {
					skipped, err = skipped+1, nil
				} else if err != nil {
					break
				} else if batches++; batches == stop {
					cancel(io.ErrNoProgress)
				}
			}
		}
		return fmt.Sprintf(summary, batches, skipped, at.Epoch, at.Pos, err == nil, errors.Is(err, io.ErrNoProgress))
	}
	for workers := range 3 {
		data := failing(10, 1, 4, 7)
		for name, run := range map[string]func(context.Context, *Cursor) iter.Seq2[[]int, error]{
			"loader":  newLoader(t, data, Options{Workers: workers}).Run,
			"stream":  Batch(Map(Indices(Sequential(10)), workers, data.Get), 1, List[int]).Run,
			"by hand": Stream[[]int](own).Run,
		} {
			equal(t, name, loop(run, Cursor{}, 0), fmt.Sprintf(summary, 14, 6, 2, 0, true, false))
			equal(t, name, loop(run, Cursor{}, 4), fmt.Sprintf(summary, 4, 2, 0, 6, false, true))
			equal(t, name, loop(run, Cursor{Pos: 3, State: "another"}, 0), fmt.Sprintf(summary, 0, 0, 0, 3, false, false))
		}
	}
}

// TestLastItemHandedOver: the end of an epoch counts once its last item has been handed over, even if the context ends in
// the body of that item, behind every stage and for any number of workers.
func TestLastItemHandedOver(t *testing.T) {
	for _, n := range []int{2, 5, 8, 14} { // 0 to 3 workers; Filter and Shard keep the last item of their source
		for _, source := range []ints{Indices(Sequential(6)), Unbatch(newLoader(t, numbers(6), Options{Workers: n / 4}).Stream())} {
			for name, s := range behind(source, n) {
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						want := outcomes(s.Epoch(t.Context(), 0))
						for k := range len(want) + 1 {
							checkStop(t, s, 0, k, want, true)
						}
					})
				})
			}
		}
	}
}

// TestHealedStreams: items that fail in the first run and have healed by the resume change nothing else.
func TestHealedStreams(t *testing.T) {
	for _, n := range []int{4, 8} {
		source := &feed{n: 30}
		for name, s := range behind(source.stream(), n) {
			synctest.Test(t, func(t *testing.T) {
				want := outcomes(s.Epoch(t.Context(), 0))
				source.bad = []int{1, 5, 9, 13, 17, 21, 25, 29}
				sick, all := fmt.Sprint(outcomes(s.Epoch(t.Context(), 0))), cursors(t, s)
				source.bad = nil
				equal(t, name+": items, and whether one failed", fmt.Sprint(len(all)-1, strings.Contains(sick, "bad")), fmt.Sprint(len(want), true))
				for k, at := range all {
					equal(t, fmt.Sprintf("%s: after %d", name, k), outcomes(s.Run(t.Context(), ptr(throughJSON(t, at)))), want[k:])
				}
			})
		}
	}
}

// TestRefusedCursors: a cursor is refused if another pipeline has made it, if the source has other items now that a stage
// reads again, or if no pipeline can have made it. The error says what does not fit, alone and behind stages that pass
// cursors on.
func TestRefusedCursors(t *testing.T) {
	s, indices := counting(9), Indices(Sequential(9))
	after := func(s ints) Cursor { return cursors(t, s)[1] }
	loader := Map(newLoader(t, numbers(9), Options{}).Stream(), 0, head)
	weighted := func(a, b float64) ints { return Mix(MixOptions{Weights: []float64{a, b}, Seed: 3}, s, s) }
	four := Batch(s, 4, List[int])
	three := Map(four, 0, func(_ context.Context, b []int) ([]int, error) { return b[:min(3, len(b))], nil })
	third := cursors(t, Unbatch(four))[3]
	odd := func(i int) bool { return i%2 == 1 }
	ends := cursors(t, counting(20).Shuffle(40, 1))[3]
	healed := cursors(t, counting(20, 0, 4, 8, 12, 16).Filter(odd).Shuffle(9, 1))[3]
	two, flags := make([]Cursor, 2), make([]bool, 2)
	state := func(state stage) Cursor { return Cursor{Pos: 1, State: state} }
	const take, mix = "Take(3)", "Mix(2 in turn, stop 0)"
	for _, c := range []struct {
		s    ints
		from Cursor
		says string // between dots
	}{
		{s.Take(4), after(s.Take(3)), "Take(3) … Take(4)"},
		{s.Shuffle(3, 2), after(s.Shuffle(3, 1)), "Shuffle(3, seed 1) … Shuffle(3, seed 2)"},
		{Chain(s, s, s), after(Chain(s, s)), "Chain(2) … Chain(3)"},
		{weighted(2, 1), after(weighted(1, 2)), "Mix(seed 3, weights [1 2] … Mix(seed 3, weights [2 1]"},
		{Mix(MixOptions{}, s), after(Mix(MixOptions{}, s, s)), "Mix(2 in turn … Mix(1 in turn"},
		{Indices(Random(8, 1)), after(Indices(Random(9, 1))), "Random(9, seed 1) … Random(8, seed 1)"},
		{s, after(Indices(Random(9, 1))), "Random(9, seed 1) … FromSeq"},
		{s.Take(5).Repeat(2), after(Indices(Random(9, 1)).Take(5).Repeat(2)), "Random(9, seed 1) … FromSeq"},
		{indices, after(loader), "made by Sequential(9), this is Indices(Sequential(9))"},
		{loader, after(indices), "made by Indices(Sequential(9)), this is Sequential(9)"},

		{counting(3), after(s.Filter(func(i int) bool { return i > 5 })), "pos 7 … only 3 items"},
		{Unbatch(Batch(s, 2, List[int])), third, "the source has changed … a batch of 4 elements … has 2 elements"},
		{Unbatch(three), third, "the source has changed … a batch of 4 elements … has 3 elements"},
		{Unbatch(Batch(s.Filter(func(i int) bool { return i > 0 }), 4, List[int])), third, `the source has changed … "pos":4 … "pos":5`},
		{counting(0).Shuffle(40, 1), ends, "the source has changed: a window of"},
		{counting(22).Shuffle(40, 1), ends, "the source has changed: a window of"},
		{counting(20).Filter(odd).Shuffle(9, 1), healed, "the source has changed: a window of"},

		{s.Take(3), Cursor{Pos: -1}, "must not be negative"},
		{s.Take(3), Cursor{Epoch: -1}, "must not be negative"},
		{s.Repeat(7), Cursor{Epoch: math.MaxInt / 3}, "Repeat: epoch … of 7 epochs is too far"},
		{s.Take(3), Cursor{Pos: 1}, "it was made by another stream, this is Take(3)"},
		{s.Take(3), Cursor{Pos: 1, State: 7}, "does not fit"},
		{s.Take(3), state(stage{By: take, N: -1}), "damaged"},
		{s.Take(3), state(stage{By: take, M: -1}), "damaged"},
		{s.Take(3), state(stage{By: take, Sources: two}), "damaged"},
		{s.Take(3), state(stage{By: take, Ended: flags}), "damaged"},
		{Mix(MixOptions{}, s, s), state(stage{By: mix, Ended: flags}), "damaged"},
		{Mix(MixOptions{}, s, s), state(stage{By: mix, Sources: two[:1], Ended: flags}), "damaged"},
		{Mix(MixOptions{}, s, s), state(stage{By: mix, Sources: two, Ended: flags[:1]}), "damaged"},
		{Chain(s, s), state(stage{By: "Chain(2)", N: 2}), "damaged: 2 is not one of 2 parts"},
		{s.Shuffle(4, 1), state(stage{By: "Shuffle(4, seed 1)", N: 4}), "the source has changed"},
		{Unbatch(four), state(stage{By: "Unbatch", N: 4, M: 4}), "the source has changed"},
		{indices, Cursor{Pos: 10, State: stage{By: "Indices(Sequential(9))"}}, "pos must be at most 9"},
	} {
		for _, from := range []Cursor{c.from, throughJSON(t, c.from)} {
			for _, s := range []ints{c.s, Map(Batch(c.s, 2, List[int]).Prefetch(2), 1, head)} {
				at := from
				err := ending(s.Run(t.Context(), &at))
				saysAll(t, err, strings.Split(c.says, " … ")...)
				equal(t, c.says+": is a SampleError, and the cursor", fmt.Sprint(errors.As(err, new(*SampleError)), at), fmt.Sprint(false, from))
			}
		}
	}
	equal(t, "a good state", len(outcomes(Mix(MixOptions{}, s, s).Run(t.Context(), ptr(state(stage{By: mix, Sources: two, Ended: flags}))))), 18)
}

// TestBadStreams: arguments that can never be right panic, with what was given and what is allowed.
func TestBadStreams(t *testing.T) {
	s := counting(3)
	for _, c := range []struct {
		bad  func()
		says string
	}{
		{func() { s.Filter(nil) }, "Filter: keep is nil"},
		{func() { s.Take(-1) }, "Take: n is -1, must not be negative"},
		{func() { s.Shard(Shard{2, 2}) }, "Stream.Shard: Shard is {Index: 2, Count: 2}; Count must be 0 to 1048576, and Index 0 to 1"},
		{func() { s.Shuffle(0, 1) }, "Shuffle: the window is 0, must be at least 1"},
		{func() { s.Prefetch(0) }, "Prefetch: n is 0, must be 1 to 16777216"},
		{func() { s.Prefetch(math.MaxInt) }, "Prefetch: n is"},
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
		{func() { Mix(MixOptions{Stop: 4}, s) }, "Mix: Stop is 4, must be StopAtFirst"},
		{func() { Mix(MixOptions{Stop: -1}, s) }, "Mix: Stop is -1"},
		{func() { Chain(s, nil) }, "Chain: stream 1 is nil"},
		{func() { Mix(MixOptions{}, s, nil) }, "Mix: stream 1 is nil"},
		{func() { Unbatch[int](nil) }, "Unbatch: the stream is nil"},
		{func() { Zip[int, int](s, nil) }, "Zip: the second stream is nil"},
	} {
		mustPanic(t, c.bad, "dataloader: "+c.says)
	}
	for _, stage := range stages {
		mustPanic(t, func() { stage.of(nil, 0, func() ints { return s }) }, "dataloader: ", stage.name+": ", "stream", "is nil")
	}
}

// TestStreamsWithoutItems: an endless stage whose source is empty cannot be continued, nor can an Unordered loader. Stages
// behind them pass that error on. A context ends what yields nothing: empty epochs, and items that a resume skips.
func TestStreamsWithoutItems(t *testing.T) {
	empty, three := counting(0), counting(3)
	const unordered = "a loader with Options.Unordered is no stream, because a resume could lose samples: use its Run, or leave Unordered unset"
	for says, s := range map[string]ints{
		"Repeat(0): the stream has no items in epoch 2": empty.Repeat(0),
		"Mix: source 0 has no items in epoch 2":         Mix(MixOptions{Stop: CycleForever}, empty, three),
		"Mix: source 1 has no items in epoch 2":         Mix(MixOptions{Stop: CycleUntilLast}, three, empty),
		"Mix: source 2 has no items in epoch 2":         Mix(MixOptions{Stop: CycleForever, Weights: []float64{1, 1, 1}}, three, three, empty),
		unordered:                                       Unbatch(newLoader(t, numbers(6), Options{Unordered: true, Workers: 2}).Stream()),
	} {
		for _, s := range []ints{s, Map(s.Prefetch(2).Shuffle(2, 0), 2, quick)} {
			got := outcomes(s.Epoch(t.Context(), 2))
			equal(t, "the last", got[len(got)-1], "error dataloader: "+says)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBad)
	equal(t, "epochs", outcomes(Indices(Sequential(0)).Repeat(math.MaxInt32).Epoch(ctx, 0)), "[error bad sample]")
	equal(t, "skipped", outcomes(counting(-1).Run(ctx, &Cursor{Pos: math.MaxInt, State: stage{By: "FromSeq"}})), "[error bad sample]")
}

// TestReadAhead: no stage reads before the range, further ahead of the loop than it says, or after it was left. And each
// item is handed over as soon as the source has yielded what the item needs, not with the source's next item.
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
		{"Mix", func(s ints) ints { return Mix(MixOptions{}, s, counting(9)) }, []int{1, 1, 2}, 0},
		{"Shard", func(s ints) ints { return s.Shard(Shard{1, 3}) }, []int{2, 5, 8}, 0},
		{"Batch", func(s ints) ints { return Unbatch(Batch(s, 2, List[int])) }, []int{2, 2, 4}, 0},
		{"Map, inline", func(s ints) ints { return Map(s, 0, quick) }, []int{1, 2, 3}, 0},
		{"Map, 3 workers", func(s ints) ints { return Map(s, 3, quick) }, []int{1, 2, 3, 4}, 24},
		{"Prefetch", func(s ints) ints { return s.Prefetch(4) }, []int{1, 2, 3, 4}, 4},
		{"Prefetch, Map, Prefetch", func(s ints) ints { return Map(s.Prefetch(2), 1, quick).Prefetch(3) }, []int{1, 2, 3, 4}, 2 + 8 + 3},
	} {
		for _, delay := range []time.Duration{0, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				source := &feed{n: 100, before: func(context.Context, int) { time.Sleep(delay) }}
				s := c.of(source.stream())
				equal(t, c.name+": read before the range", source.read.Load(), 0)
				start := time.Now()
				var got []int
				for _, err := range s.Epoch(t.Context(), 0) {
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					now := int(source.read.Load()) - c.ahead
					if delay > 0 {
						now = int(time.Since(start) / delay)
					}
					if got = append(got, now); len(got) == len(c.needs) {
						break
					}
				}
				equal(t, c.name, got, c.needs)
				equal(t, c.name+": the source has been left", source.left.Load(), 1)
			})
		}
	}
}

// dataset.go: FromSeq.

// TestFromSeq: a sequence that stops because its context has ended has not reached the end of its epoch, and no stage takes
// it for that.
func TestFromSeq(t *testing.T) {
	source := &feed{n: 1, before: func(ctx context.Context, i int) {
		if i == 1 {
			<-ctx.Done()
		}
	}}
	for name, s := range behind(source.stream(), 5) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, io.ErrNoProgress)
			defer cancel()
			var at Cursor
			got := outcomes(s.Run(ctx, &at))
			equal(t, name, fmt.Sprint(at, got[len(got)-1]), fmt.Sprint(Cursor{0, len(got) - 1, at.State}, "error ", io.ErrNoProgress))
		})
	}
}

// sampler.go: Shuffle, Mix and Shard.

// TestShuffleStream: each item comes once, in its window. The windows have many orders, the epochs and seeds have orders
// of their own, and the first windows many lengths. Never are more than a window of items in memory.
func TestShuffleStream(t *testing.T) {
	const n, window, epochs = 100, 8, 20
	source := &feed{n: n}
	orders, firsts := map[string]bool{}, map[int]bool{}
	for k := range epochs + 1 { // the last one is epoch 0 of another seed
		source.read.Store(0)
		var got []int
		start, windows := 0, map[string]bool{}
		for i := range source.stream().Shuffle(window, uint64(k/epochs)).Epoch(t.Context(), k%epochs) {
			got = append(got, i-100*(k%epochs))
			if ahead := int(source.read.Load()) - len(got); ahead >= window {
				t.Fatalf("%d items in memory", ahead+1)
			} else if ahead > 0 {
				continue
			}
			var w []int // a window in full
			for _, i := range got[start:] {
				w = append(w, i-start)
			}
			equal(t, "a window", sorted(w), upTo(len(w)))
			windows[fmt.Sprint(w)] = true
			if start == 0 {
				firsts[len(w)] = true
			}
			start = len(got)
		}
		equal(t, "items", start, n)
		equal(t, "whether the windows have many orders", len(windows) >= 5, true)
		orders[fmt.Sprint(got)] = true
	}
	equal(t, "different orders", len(orders), epochs+1)
	equal(t, "whether the first windows have many lengths", len(firsts) >= window/2, true)
}

// TestItemsAreForgotten: what Shuffle and Batch have handed over can be collected, before the window or the next batch is
// full, and so can what Map has used, before the loop has the result.
func TestItemsAreForgotten(t *testing.T) {
	var all []weak.Pointer[[4096]byte]
	items := Map(Indices(Sequential(40)), 0, func(context.Context, int) (*[4096]byte, error) {
		p := new([4096]byte)
		all = append(all, weak.Make(p))
		return p, nil
	})
	inMemory := func(most int) { // checks how many items are still in memory
		runtime.GC()
		n := 0
		for _, p := range all {
			if p.Value() != nil {
				n++
			}
		}
		if n > most {
			t.Errorf("%d of %d items are in memory, want at most %d", n, len(all), most)
		}
	}
	given := 0
	for range items.Shuffle(8, 1).Epoch(t.Context(), 0) {
		given++
		inMemory(len(all) - given + 2) // with the item in hand, and perhaps the last one
	}
	count := func(_ int, samples []*[4096]byte) (int, error) { return len(samples), nil }
	for range Batch(items, 8, count).Epoch(t.Context(), 0) {
		inMemory(1) // perhaps the last one
	}
	synctest.Test(t, func(t *testing.T) {
		for range Map(items, 1, func(context.Context, *[4096]byte) (int, error) { return 0, nil }).Epoch(t.Context(), 0) {
			synctest.Wait() // for a window of results
			inMemory(1)
		}
	})
}

// TestResumes: a resume fetches each item after the cursor once, and no item before it. Only Shuffle needs those of its
// window again.
func TestResumes(t *testing.T) {
	const n, window = 40, 8
	var fetched atomic.Int64
	fetch := func(_ context.Context, i int) (int, error) { fetched.Add(1); return i, nil }
	for workers := range 3 {
		items := Map(Indices(Random(n, 1)).Prefetch(3), workers, fetch)
		for again, s := range map[int]ints{0: Map(Batch(items, 4, List[int]), 0, head), window - 1: items.Shuffle(window, 1)} {
			for _, at := range cursors(t, s) {
				fetched.Store(0)
				rest := n - at.Pos
				collect(t, s.Run(t.Context(), &at))
				if more := int(fetched.Load()) - rest; more < 0 || more > again {
					t.Errorf("a resume fetches %d items and %d more, want at most %d more", rest, more, again)
				}
			}
		}
	}
}

// mixCounts counts the items of each source in an epoch of a mix of sources of these sizes.
func mixCounts(t *testing.T, opts MixOptions, epoch int, sizes ...int) (total int, each []int) {
	var srcs []ints
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

// TestMixCounts: in turn, the number of items has a closed form for each Stop. By weight, each Stop promises how many
// sources are read to their end: one, and no source again; all, and no source again; all, and the last one only once.
func TestMixCounts(t *testing.T) {
	for _, sizes := range [][]int{{1}, {4}, {1, 2}, {3, 1}, {4, 4}, {1, 2, 3}, {3, 2, 1}, {4, 4, 4}, {2, 4, 1, 3}} {
		first, last, all := math.MaxInt, 0, 0
		for i, n := range sizes {
			first, last, all = min(first, n*len(sizes)+i), max(last, n*len(sizes)+i), all+n
		}
		for stop, want := range map[Stop]int{StopAtFirst: first, StopAtLast: all, CycleUntilLast: last} {
			got, _ := mixCounts(t, MixOptions{Stop: stop}, 0, sizes...)
			equal(t, fmt.Sprint(sizes, " stop ", stop), got, want)
		}
		for epoch := range 5 {
			for stop := StopAtFirst; stop <= CycleUntilLast; stop++ {
				_, each := mixCounts(t, MixOptions{Weights: slices.Repeat([]float64{.5}, len(sizes)), Seed: 1, Stop: stop}, epoch, sizes...)
				for i, n := range sizes {
					each[i] -= n
				}
				least, most := slices.Min(each), slices.Max(each)
				if good := []bool{most == 0, least == 0 && most == 0, least == 0}; !good[stop] {
					t.Errorf("stop %d: of %v came %v more", stop, sizes, each)
				}
			}
		}
	}
}

// TestMixWeights: the sources have shares as their weights are, in an order of its own for each epoch and seed.
func TestMixWeights(t *testing.T) {
	_, each := mixCounts(t, MixOptions{Weights: []float64{1, 2, 5}, Seed: 3}, 0, 8000, 8000, 4000)
	if a, b := float64(each[1])/float64(each[0]), float64(each[2])/float64(each[0]); math.Abs(a-2) > .2 || math.Abs(b-5) > .5 {
		t.Errorf("weights 1, 2, 5 gave %v", each)
	}
	a, b, orders := letters("abcdefghijklmnopqrst"), letters("ABCDEFGHIJKLMNOPQRST"), map[string]bool{}
	for k := range 9 {
		mix := Mix(MixOptions{Weights: []float64{1, 1}, Seed: uint64(k / 3)}, a, b)
		orders[fmt.Sprint(outcomes(mix.Epoch(t.Context(), k%3)))] = true
	}
	equal(t, "orders", len(orders), 9)
}

// TestStreamRanks: after a stop in lock-step another number of ranks goes on, without loss or repeat.
func TestStreamRanks(t *testing.T) {
	const n, global = 50, 12
	part := func(rank, ranks int) Stream[[]int] {
		shuffled := counting(n).Shuffle(5, 1) // before Shard
		return Batch(Map(shuffled.Shard(Shard{rank, ranks}), 0, quick), global/ranks, List[int]).Prefetch(2)
	}
	for _, before := range []int{1, 2, 3, 4, 6} {
		for _, after := range []int{1, 2, 3, 4, 12} {
			for steps := 1; steps <= n/global; steps++ {
				var at Cursor // of any rank
				var got [][]int
				for rank := range before {
					got = append(got, collect(t, part(rank, before).Epoch(t.Context(), 0))[:steps]...)
					at = throughJSON(t, cursors(t, part(rank, before))[steps])
				}
				for rank := range after {
					got = append(got, collect(t, part(rank, after).Run(t.Context(), ptr(at)))...)
				}
				what := fmt.Sprintf("%d ranks, after %d steps %d ranks", before, steps, after)
				equal(t, what, sorted(slices.Concat(got...)), upTo(n))
			}
		}
	}
}

// batch.go: Batch.

// TestPipelineIsLoader: Batch of Map of Indices gives the batches of the classic loader, and its first one sooner.
func TestPipelineIsLoader(t *testing.T) {
	for n := range 12 {
		sampler := Random(n, 5)
		pipeline := Batch(Map(Indices(sampler), 3, failing(n, 4).Get), 3, List[int])
		loader := newLoader(t, failing(n, 4), Options{Sampler: sampler, BatchSize: 3, Workers: 2})
		for epoch := range 3 {
			a, b := outcomes(pipeline.Epoch(t.Context(), epoch)), outcomes(loader.Epoch(t.Context(), epoch))
			for k := range b {
				if strings.HasPrefix(b[k], "error") { // each names its own stage
					a[k], b[k] = a[k][:5], "error"
				}
			}
			equal(t, fmt.Sprintf("%d samples, epoch %d", n, epoch), a, b)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		slow := &probe{n: 64, takes: always(time.Second)}
		pipeline, loader := Batch(Map(Indices(Sequential(64)), 8, slow.Get), 16, List[int]), newLoader(t, slow, Options{BatchSize: 16, Workers: 8})
		for want, first := range map[time.Duration]Stream[[]int]{2 * time.Second: pipeline, 16 * time.Second: loader.Stream()} {
			start := time.Now()
			for range first.Epoch(t.Context(), 0) {
				equal(t, "the first batch comes after", time.Since(start), want)
				break
			}
		}
	})
}

// TestUnbatchErrorAtResume: a batch that fails at a resume in its middle is a failed item, whatever the position, and the
// batches after it follow.
func TestUnbatchErrorAtResume(t *testing.T) {
	source := &feed{n: 12}
	s := Unbatch(Batch(source.stream(), 4, List[int]))
	all := cursors(t, s)
	source.bad = []int{5}
	want := []string{"0", "1", "2", "3", "error item 5 is bad", "8", "9", "10", "11"}
	for k, at := range all {
		equal(t, fmt.Sprint("after ", k), outcomes(s.Run(t.Context(), ptr(throughJSON(t, at)))), want[max(min(k, 4), k-3):])
	}
}

// worker.go: Map, Prefetch, and functions and readers that die.

// TestScopeInMap: what f is told depends on the place of the item and on the seed of the context, and not on the number
// of workers. Only Worker tells in which of them f runs: 0 to workers-1, or -1 in the goroutine of the loop.
func TestScopeInMap(t *testing.T) {
	draw := func(ctx context.Context, s ints, workers, epoch int) []int {
		return collect(t, Map(s, workers, func(ctx context.Context, _ int) (int, error) { return Rand(ctx).Int(), nil }).Epoch(ctx, epoch))
	}
	s, seeded := counting(20), WithSeed(t.Context(), 1)
	want := draw(t.Context(), s, 0, 1)
	equal(t, "3 workers", draw(t.Context(), s, 3, 1), want)
	var all []int
	for epoch := range 3 {
		all = append(all, draw(t.Context(), s, 2, epoch)...)
		all = append(all, draw(seeded, s, 2, epoch)...)
	}
	equal(t, "different numbers", len(slices.Compact(sorted(all))), 2*3*20)
	ranks := append(draw(t.Context(), s.Shard(Shard{0, 2}), 0, 1), draw(t.Context(), s.Shard(Shard{1, 2}), 0, 1)...)
	equal(t, "ranks, which do not draw the same numbers", sorted(ranks), sorted(want))
	equal(t, "WithSeed alone", Rand(seeded).Int(), Rand(WithSeed(t.Context(), 1)).Int())

	for workers, want := range []string{"[-1]", "[0]", "[0 1]", "[0 1 2]"} {
		synctest.Test(t, func(t *testing.T) {
			seen := collect(t, Map(counting(20), workers, func(ctx context.Context, _ int) (int, error) {
				time.Sleep(time.Second) // so that all workers are needed
				return Worker(ctx), nil
			}).Epoch(t.Context(), 0))
			equal(t, "Worker", slices.Compact(sorted(seen)), want)
		})
	}
}

// TestRandSalts: two augmentations of one sample draw different numbers: a Map and the Map before it, and what is inside
// and outside a Cache, in every epoch.
func TestRandSalts(t *testing.T) {
	draw := func(ctx context.Context, drawn []int) ([]int, error) {
		return append(slices.Clone(drawn), Rand(ctx).Int()), nil
	}
	nothing := Func(5, func(context.Context, int) ([]int, error) { return nil, nil })
	cached := Transform(Cache(Transform(Cache(Transform(nothing, draw)), draw)), draw)
	for workers := range 3 {
		loader := newLoader(t, cached, Options{Workers: workers})
		mapped := Map(Map(Map(Map(Indices(Sequential(5)), 0, nothing.Get), workers, draw), workers, draw), workers, draw)
		for epoch := range 2 {
			all := append(samples(t, loader, epoch), collect(t, mapped.Epoch(WithSeed(t.Context(), 1), epoch))...)
			equal(t, "different numbers", len(slices.Compact(sorted(slices.Concat(all...)))), 2*3*5)
		}
	}
}

// TestPrefetchQueue: the six properties that the RFC asks of its queue. Delivery is guaranteed, without duplicates, in
// order. The length is customizable, and says how far the source is read ahead. Neither end waits while there is room, or
// an item. (A queue is between exactly two ends because it is a range; between machines there are shards instead.)
func TestPrefetchQueue(t *testing.T) {
	const n = 20
	for _, length := range []int{1, 2, 7, 100} {
		for _, produce := range []time.Duration{0, 1, 2} {
			for _, consume := range []time.Duration{0, 1, 2} {
				synctest.Test(t, func(t *testing.T) {
					source := &feed{n: n, before: func(_ context.Context, i int) {
						if i < n {
							time.Sleep(produce * time.Second)
						}
					}}
					start, got, ahead := time.Now(), []int{}, 0
					for i := range source.stream().Prefetch(length).Epoch(t.Context(), 0) {
						time.Sleep(consume * time.Second)
						synctest.Wait()
						got = append(got, i)
						ahead = max(ahead, int(source.read.Load())-len(got))
					}
					equal(t, "items", got, positions(Sequential(n), 0))
					equal(t, "time", time.Since(start), (n*max(produce, consume)+min(produce, consume))*time.Second)
					if produce == 0 {
						equal(t, "ahead", ahead, min(length, n-1))
					}
				})
			}
		}
	}
}

// TestStreamsThatDie: a panic in a source is the last error, and in a function of a stage it fails the item. In the
// goroutines of a stage that is so for runtime.Goexit too. All goroutines are joined.
func TestStreamsThatDie(t *testing.T) {
	for what, die := range map[string]func(){"panic: ouch": func() { panic("ouch") }, "runtime.Goexit was called": runtime.Goexit} {
		check := func(i int) {
			if i%100 == 1 {
				die()
			}
		}
		f := func(_ context.Context, i int) (int, error) { check(i); return i, nil }
		source := (&feed{n: 1, before: func(_ context.Context, i int) { check(i) }}).stream()
		failing := Map(source, 0, func(_ context.Context, i int) (int, error) { return i, errBad })
		broken, alone, failed := "[300 error dataloader: the stream: "+what+"]", "[error dataloader: the stream: "+what+"]", "[300 error Map: "+what+" 302]"
		dies := func(s ints, want string) {
			synctest.Test(t, func(t *testing.T) { equal(t, "outcomes", outcomes(s.Epoch(t.Context(), 3)), want) })
		}
		dies(source.Prefetch(1), broken)
		dies(source.Prefetch(3), broken)
		dies(Unbatch(Batch(source.Prefetch(3), 2, List[int])), alone)  // no short batch
		dies(Unbatch(Batch(failing.Prefetch(3), 2, List[int])), alone) // not even a failed one
		dies(source.Prefetch(3).Shuffle(1000, 1), alone)               // no short window
		dies(Map(source, 1, quick), broken)
		dies(Map(source, 2, quick), broken)
		dies(Map(counting(3), 1, f), failed)
		dies(Map(counting(3), 2, f), failed)
		if what != "panic: ouch" { // the caller may end its own goroutine, in which the loop runs
			continue
		}
		each := func(_ []int, samples []int) ([]int, error) { check(samples[0]); return List(nil, samples) }
		dies(source, "[300 error dataloader: epoch 3: panic: ouch]")
		dies(FromSeq(func(context.Context, int) iter.Seq2[int, error] { panic("ouch") }), "[error dataloader: epoch 3: panic: ouch]")
		dies(counting(3).Filter(func(i int) bool { check(i); return true }), "[300 error Filter: panic: ouch 302]")
		dies(Indices(OrderFunc(2, func(int) []int { panic("ouch") })), "[error dataloader: Indices: epoch 3: panic: ouch]")
		dies(Unbatch(Batch(counting(3), 1, each)), "[300 error Batch: panic: ouch 302]")
		dies(Map(counting(3), 0, f), failed)
	}
}

// TestPanicsOfTheLoop: a panic in the loop body is the caller's. So is the panic of a source that is being left, in its
// cleanup or because it goes on; behind a goroutine nobody is left to hear of it. A Mix leaves its other sources all the
// same. (The bubble would report their goroutines.)
func TestPanicsOfTheLoop(t *testing.T) {
	for name, s := range behind(counting(3), 5) {
		mustPanic(t, func() {
			for range s.Epoch(t.Context(), 0) {
				panic("behind " + name)
			}
		}, "behind "+name)
	}
	leave := func(s ints, items int) {
		for range s.Epoch(t.Context(), 0) {
			if items--; items == 0 {
				break
			}
		}
	}
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
		synctest.Test(t, func(t *testing.T) {
			s, other := FromSeq(func(context.Context, int) iter.Seq2[int, error] { return seq }), counting(9).Prefetch(2)
			mustPanic(t, func() { leave(s, 1) }, says)
			mustPanic(t, func() { leave(Map(s, 0, quick), 1) }, says)
			mustPanic(t, func() { leave(Mix(MixOptions{}, other, s, other, s, other), 5) }, says)
			for workers := 1; workers < 4; workers++ {
				leave(Map(s, workers, quick), 1)
				leave(s.Prefetch(workers), 1)
			}
		})
	}
}

// dataloader.go: where the time goes.

// TestStats compares every figure with that of a schedule worked out by hand. load is how long each sample takes, again
// from the first after the last; a sample of -1 fails. step is how long the loop takes for a batch. What happens between
// loops is neither waiting nor training.
func TestStats(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	const ms = time.Millisecond
	type d = []time.Duration
	slow := d{10 * ms, 10 * ms, 200 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms}
	ragged := make(d, 200)
	for i := range ragged {
		ragged[i] = 50*ms + time.Duration(below(100, 1, uint64(i)))*ms
	}
	for _, c := range []struct {
		name   string
		opts   Options
		epochs int
		n      int
		load   d
		step   time.Duration
		want   string // how the line ends
	}{
		// Batches are ready in pairs, at 100, 200, …; every other one is waited for, for 40.
		{"loader", Options{BatchSize: 2, Workers: 2}, 1, 40, d{50 * ms}, 30 * ms,
			"20 batches, 40 samples (38/s), 0 dropped; waited 43 % of 1.06s, 0 % with the next batch ready; workers: 2, 94 % busy: the loader is the bottleneck, workers needed: 4"},
		// Only the first batch is waited for.
		{"many", Options{Workers: 1}, 1, 11, d{100 * ms}, 10 * ms,
			"waited 90 % of 1.11s, 0 % with the next batch ready; workers: 1, 99 % busy: the loader is the bottleneck, workers needed: 10, if they wait rather than compute; to compute there are 8 CPUs"},
		{"training", Options{Workers: 4}, 1, 20, d{20 * ms}, 100 * ms,
			"waited 1 % of 2.02s, 0 % with the next batch ready; workers: 4, 5 % busy: the training is the bottleneck, workers needed: 1"},
		{"training alone", Options{}, 1, 20, d{8 * ms}, 100 * ms,
			"waited 7 % of 2.16s, 0 % with the next batch ready: the training is the bottleneck, workers needed: 0"},
		// From 50 to 210 the loop waits for batch 2, behind which 3 to 5 are ready.
		{"slow batch", Options{Workers: 2}, 1, 12, slow, 20 * ms,
			"waited 41 % of 410ms, 39 % with the next batch ready; workers: 2, 38 % busy: slow batches block the batches behind them, raise Prefetch or set Unordered"},
		// Batches 0, 4, 8, … take 60, the others 10: 30 on the average of 30 that two workers need.
		{"uneven", Options{Workers: 1, Prefetch: 1}, 1, 9, d{60 * ms, 10 * ms, 10 * ms, 10 * ms}, 30 * ms,
			"waited 31 % of 390ms, 0 % with the next batch ready; workers: 1, 62 % busy: the loader keeps up on average but not always, raise Prefetch"},
		{"bad samples", Options{BatchSize: 2, OnError: func(*SampleError) error { return nil }}, 1, 20, append(slices.Repeat(d{-1}, 5), slices.Repeat(d{50 * ms}, 15)...), 30 * ms,
			"10 batches, 15 samples (15/s), 5 dropped; waited 76 % of 983ms, 0 % with the next batch ready: the loader is the bottleneck, workers needed: 4"},
		// Batch 0 comes at 100, the others at 101, 102 and 103, all of them before the loop has had batch 0 for 15.
		{"first batch slow for one worker", Options{Workers: 1}, 1, 4, d{100 * ms, ms, ms, ms}, 15 * ms,
			"waited 62 % of 160ms, 0 % with the next batch ready; workers: 1, 64 % busy: a few batches are so slow that the loop waits for them while workers are idle"},
		{"two batches", Options{}, 1, 2, d{10 * ms}, 10*ms + 100*time.Microsecond,
			"waited 50 % of 40.2ms, 0 % with the next batch ready: loading and training take turns, a worker would load during training"},
		// Training that is never timed is unknown.
		{"loops of one batch", Options{Workers: 1}, 11, 1, d{700 * time.Microsecond}, 61 * ms,
			"11 batches in 11 loops: too few to tell, since training is timed between two batches of a loop"},
		// Each loop waits for its first batch, whatever Prefetch is.
		{"short loops", Options{Workers: 4}, 10, 5, d{10 * ms}, 10 * ms,
			"waited 17 % of 600ms, 0 % with the next batch ready; workers: 4, 21 % busy: the loader keeps up after the first batch of a loop; loops: 10"},
		// What was waited for in one loop has ended in the next.
		{"loops without training", Options{Workers: 2}, 50, 4, d{10 * ms}, 0,
			"waited 100 % of 1s, 0 % with the next batch ready; workers: 2, 100 % busy: the loader is the bottleneck, the loop takes no time of its own"},
		// 100 of each 25 are enough for 4 workers, and less than half of the waiting is for a batch before others.
		{"ragged", Options{Workers: 4, Prefetch: 1}, 1, 200, ragged, 25 * ms,
			"waited 21 % of 6.321s, 8 % with the next batch ready; workers: 4, 78 % busy: the loader keeps up on average but not always, raise Prefetch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				got := stats.String()
				equal(t, "Stats", got[max(0, len(got)-len(c.want)):], c.want)
			})
		})
	}
}

// TestProgress: what is shown of a sequence, on a terminal and elsewhere, is what was worked out by hand. Items and errors
// pass. The loop waits for each item and for the end, and takes some time for each item. Item 1 fails.
func TestProgress(t *testing.T) {
	const s, hour = time.Second, time.Hour
	bar := func(done int) string { return "[" + strings.Repeat("#", done) + strings.Repeat(".", 12-done) + "]" }
	for _, c := range []struct {
		name            string
		terminal        bool
		total, n, leave int // leave: a break with this many items; 0: none
		wait, body, end time.Duration
		frames          int // on a terminal: how often the bar is drawn
		want            string
	}{
		{"lines", false, 25, 25, 0, s, 0, 0, 0, "10/25  40% 1/s, 10s, 15s left, waited 100%\n20/25  80% 1/s, 20s, 5s left, waited 100%\n25/25 100% 1/s, 25s, waited 100%\n"},
		{"unknown", false, 0, 15, 0, 0, 2 * s, 0, 0, "5 0.5/s, 10s, waited 0%\n10 0.5/s, 20s, waited 0%\n15 0.5/s, 30s, waited 0%\n15 0.5/s, 30s, waited 0%\n"},
		{"more than promised", false, 2, 3, 0, s, 0, 0, 0, "3/2 100% 1/s, 3s, waited 100%\n"},
		{"nothing", false, 2, 0, 0, s, 0, 0, 0, "0/2   0% 0/s, 0s, waited 0%\n"},
		{"slow end", false, 0, 1, 0, 0, s, 9 * s, 0, "1 0.1/s, 10s, waited 90%\n"},
		{"fast", false, 0, 1000, 0, 0, s / 1e6, 0, 0, "1000 1000000/s, 0s, waited 0%\n"},
		{"long", false, math.MaxInt32, 2, 1, 2 * hour, 0, 0, 0, "1/2147483647   0% 0.000139/s, 2h0m0s, 1281023h53m38.4s left, waited 100%\n"},
		{"a bar", true, 4, 4, 0, s / 4, 3 * s / 4, 0, 5, "1/4  25% " + bar(3) + " 1/s, 1s, 3s left, waited 25%\r2/4  50% " + bar(6) + " 1/s, 2s, 2s left, waited 25%\r" +
			"3/4  75% " + bar(9) + " 1/s, 3s, 1s left, waited 25%\r4/4 100% " + bar(12) + " 1/s, 4s, waited 25%\r4/4 100% " + bar(12) + " 1/s, 4s, waited 25%"},
		{"a break", true, 100, 100, 2, s / 4, s / 4, 0, 2, "1/100   1% " + bar(0) + " 2/s, 500ms, 49.5s left, waited 50%\r2/100   2% " + bar(0) + " 2.67/s, 800ms, 36.8s left, waited 67%"},
		{"ten times a second", true, 0, 10000, 0, s / 1000, 0, 0, 101, ""},
		{"less than 80 columns", true, 99999, 20, 0, hour / 6, 5 * hour / 6, 0, 21, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := &feed{n: c.n, bad: []int{1}, before: func(_ context.Context, i int) {
					time.Sleep(map[bool]time.Duration{true: c.wait, false: c.end}[i < c.n])
				}}
				var out strings.Builder
				k := 0
				for i, err := range progress(&out, c.total, c.terminal, source.stream().Epoch(t.Context(), 0)) {
					if failed := (*SampleError)(nil); errors.As(err, &failed) != (k == 1) || err == nil && i != k {
						t.Fatalf("item %d: %d, %v", k, i, err)
					}
					if k++; k == c.leave {
						break
					}
					time.Sleep(c.body)
				}
				time.Sleep(time.Hour)
				got := out.String()
				if c.terminal {
					all := frames(t, got)
					equal(t, "frames", len(all), c.frames)
					got = strings.Join(all, "\r")
				}
				if c.want != "" {
					equal(t, "shown", got, c.want)
				}
			})
		})
	}
	var out strings.Builder
	equal(t, "values", collect(t, Progress(&out, 3, counting(3).Epoch(t.Context(), 0))), "[0 1 2]")
	if !strings.HasPrefix(out.String(), "3/3 100%") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%q", out.String())
	}
	file, null := must(os.Open("README.md")), must(os.Open(os.DevNull))
	defer file.Close()
	defer null.Close()
	// A file is no terminal. A device that is written to character by character counts as one.
	if isTerminal(io.Discard) || isTerminal(file) || runtime.GOOS == "linux" && !isTerminal(null) {
		t.Error("a terminal is not known from other files")
	}
}

// frames are what is to be seen on a terminal, one after the other. Each covers the one before, in less than 80 columns.
func frames(t *testing.T, shown string) (all []string) {
	t.Helper()
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

// TestProfiles looks into profiles as the tools show them: who a goroutine is, and what a batch was made of.
func TestProfiles(t *testing.T) {
	var out bytes.Buffer
	running := trace.Start(&out) == nil // otherwise somebody traces this test already
	whoami := func(ctx context.Context) string {
		label, _ := pprof.Label(ctx, "dataloader")
		var all bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&all, 1)
		if !strings.Contains(all.String(), fmt.Sprintf(`"dataloader":%q`, label)) {
			t.Errorf("no %q among the goroutines", label)
		}
		return label
	}
	get := func(ctx context.Context, i int) (int, error) {
		equal(t, "who loads", whoami(ctx), fmt.Sprint("worker ", Worker(ctx)))
		return i, nil
	}
	var reader string
	source := &feed{n: 1, before: func(ctx context.Context, _ int) { reader = whoami(ctx) }}
	collect(t, newLoader(t, Func(4, get), Options{Workers: 2}).Epoch(t.Context(), 0))
	for name, s := range map[string]ints{"Map": Map(source.stream(), 1, get), "Prefetch": source.stream().Prefetch(2)} {
		reader = ""
		collect(t, s.Epoch(t.Context(), 0))
		equal(t, "who reads for "+name, reader, "reader")
	}
	if running {
		trace.Stop()
		for _, name := range []string{"batch", "epoch 0, batch 1", "fetch", "collate"} {
			if !bytes.Contains(out.Bytes(), []byte(name)) {
				t.Errorf("the trace has no %q", name)
			}
		}
	}
}

// TestTimeline draws what three loaders do with the same twelve batches, of which the third is slow, from their Timings in
// fake time: as text, and as the picture of the README. A column is 10 ms.
func TestTimeline(t *testing.T) {
	const column = 10 * time.Millisecond
	slow := Func(12, func(_ context.Context, k int) (int, error) {
		d := time.Duration(4+k%2) * column
		if k == 2 {
			d = 19 * column
		}
		time.Sleep(d + time.Duration(1+k*k)*10*time.Microsecond) // so that no two are ready at the same moment
		return k, nil
	})
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
			start := time.Now()
			for range newLoader(t, slow, c.opts).Epoch(t.Context(), 0) {
				time.Sleep(column)
			}
			at := func(x time.Time) int { return int(x.Sub(start) / column) }
			last := at(timings[11].Received) + 1
			// Which of the workers that are free at the same moment takes a task is up to the scheduler; here, the first.
			lines := lanes("worker #", last, timings, func(tm Timing) (int, int) { return at(tm.Start), at(tm.Done) })
			lines = append(lines, lanes(c.ready, last, timings, func(tm Timing) (int, int) { return at(tm.Done), at(tm.Received) })...)
			lines = append(lines, lanes("caller", last, timings, func(tm Timing) (int, int) { return at(tm.Received), at(tm.Received) + 1 })...)
			fmt.Fprintf(&text, "%s: %d ms, %d ms of them waiting\n%s\n\n", c.title, 10*last, 10*(last-12), strings.Join(lines, "\n"))
			pic.panel(fmt.Sprintf("%s: %d ms", c.title, 10*last), lines)
		})
	}
	goldenFile(t, "timeline.txt", []byte(text.String()))
	goldenFile(t, "timeline.svg", pic.bytes("What three loaders do with the same twelve batches, of which batch 2 is slow"))
}

// lanes draws where the batches are in time, in as few lines as there are batches at most at once, each with its name,
// in which # is the number of the line. A batch is its number, in base 12, in each of the columns that span returns.
func lanes(name string, columns int, timings []Timing, span func(Timing) (from, to int)) (lines []string) {
	timings = slices.SortedFunc(slices.Values(timings), func(a, b Timing) int {
		x, _ := span(a)
		y, _ := span(b)
		return cmp.Or(x-y, a.Batch-b.Batch)
	})
	var rows [][]byte
	for _, tm := range timings {
		from, to := span(tm)
		if from == to {
			continue
		}
		free := slices.IndexFunc(rows, func(row []byte) bool { return row[from] == '.' })
		if free < 0 {
			free = len(rows)
			rows = append(rows, bytes.Repeat([]byte("."), columns))
		}
		copy(rows[free][from:], strings.Repeat(strconv.FormatInt(int64(tm.Batch), 12), to-from))
	}
	for i, row := range rows {
		lines = append(lines, fmt.Sprintf("%-9s %s", strings.Replace(name, "#", strconv.Itoa(i), 1), row))
	}
	return lines
}

// The classic loader, under attack.

// TestHelpfulErrors: messages say what to do.
func TestHelpfulErrors(t *testing.T) {
	loader, grown := newLoader(t, numbers(20), Options{}), newLoader(t, numbers(21), Options{})
	resized := newLoader(t, numbers(5), Options{Sampler: Resize(Sequential(5), 20), BatchSize: 20})
	drawing := newLoader(t, Func(1, func(context.Context, int) (int, error) { return Rand(context.Background()).Int(), nil }), Options{Workers: 2})
	pairs := CollatePair(Stack[int], func(dst int, _ []int) (int, error) { return dst, errBad })
	type pair = Pair[Tensor[int], int]
	collated := func(data ...int) error { return errorOf(pairs(pair{}, []pair{{First: Tensor[int]{Data: data}}})) }
	_, _, folder := Folder(os.DirFS("nowhere"))
	for _, r := range []refusal{
		{panicOf(func() { loader.Run(t.Context(), nil) }), "Run: the cursor is nil … new(Cursor)"},
		{ending(grown.Run(t.Context(), ptr(cursors(t, loader.Stream())[1]))), "this is Sequential(21); use the same data and options, or start at Cursor{Epoch: 0}"},
		{ending(resized.Run(t.Context(), &Cursor{Epoch: math.MaxInt / 3})), "Resize: epoch … too far"},
		{panicOf(func() { Rand(t.Context()) }), "Rand: the context is from no loader … WithSeed"},
		{ending(drawing.Epoch(t.Context(), 0)), "sample 0 … pass on the context that Get was given"},
		{errorOf(Stack(Tensor[int]{}, []Tensor[int]{{Data: []int{1, 2}}})), "shape [] … 2 elements … set Shape"},
		{collated(1, 2), "the first of each pair: Stack"},
		{collated(1), "the second of each pair: bad sample"},
		{errorOf(Files(os.DirFS("nowhere"))), "dataloader: Files: nowhere: … open ."},
		{folder, "dataloader: Folder: nowhere: … open ."},
	} {
		saysAll(t, r.err, strings.Split(r.want, " … ")...)
	}
}

// TestDescriptions: batch samplers that differ describe themselves differently, and a description that is not UTF-8
// survives a trip through JSON.
func TestDescriptions(t *testing.T) {
	equal(t, "are the same", describe(Batches(Sequential(7), 3, true)) == describe(Batches(Sequential(7), 3, false)), false)
	loader := newLoader(t, numbers(4), Options{Sampler: sampler{4, "caf\xe9", Sequential(4).Order}})
	at := throughJSON(t, cursors(t, loader.Stream())[1])
	equal(t, "the rest", collect(t, loader.Run(t.Context(), &at)), "[[1] [2] [3]]")
}

// TestCursorsOutOfOrder: the cursor of an Unordered loader fits only its own shard and batch size, also if nothing was ahead.
func TestCursorsOutOfOrder(t *testing.T) {
	made := cursors(t, newLoader(t, numbers(20), Options{BatchSize: 2, Unordered: true, Shard: Shard{0, 2}}).items)[1]
	for _, unordered := range []bool{true, false} {
		run := func(size int, shard Shard) iter.Seq2[[]int, error] {
			opts := Options{BatchSize: size, Unordered: unordered, Shard: shard, Workers: 2}
			return newLoader(t, numbers(20), opts).Run(t.Context(), ptr(throughJSON(t, made)))
		}
		equal(t, "the rest", len(collect(t, run(2, Shard{0, 2}))), 4)
		for _, other := range []iter.Seq2[[]int, error]{run(2, Shard{1, 2}), run(4, Shard{0, 2}), run(4, Shard{})} {
			saysAll(t, ending(other), "made out of order by shard {0 2} with batches of 2")
		}
	}
}

// TestFreeMemory: New takes no memory for batches that are not there yet.
func TestFreeMemory(t *testing.T) {
	type large [100 << 10]byte
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	must(New(numbers(1<<20), func(dst large, _ []int) (large, error) { return dst, nil }, Options{Workers: 64, Prefetch: 16}))
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 1<<20 {
		t.Errorf("New took %d bytes", taken)
	}
}
