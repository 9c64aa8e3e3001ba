package dataloader

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"weak"
)

// What broke under attack.

// TestUnbatchErrorAtResume: a batch that fails at a resume in its middle is a failed item, whatever the position, and the
// batches after it follow.
func TestUnbatchErrorAtResume(t *testing.T) {
	sick := false
	s := Unbatch(Map(Batch(Indices(Sequential(12)), 4, List[int]), 0, func(_ context.Context, b []int) ([]int, error) {
		if sick && b[0] == 4 {
			return nil, errBad
		}
		return b, nil
	}))
	cursors := []Cursor{{}}
	for item, err := range s(t.Context(), Cursor{}) {
		if err != nil {
			t.Fatal(err)
		}
		cursors = append(cursors, throughJSON(t, item.Next))
	}
	sick = true
	for k, at := range cursors {
		want := []string{"0", "1", "2", "3", "error Map: bad sample", "8", "9", "10", "11"}
		if k < 8 {
			want = want[min(k, 4):]
		} else {
			want = want[k-3:]
		}
		equal(t, fmt.Sprint("after ", k), outcomes(s.Run(t.Context(), &at)), want)
		equal(t, "then", at, Cursor{Epoch: 1})
	}
}

// TestChangedSources: a stage that reads its source again at a resume refuses the cursor if the source has other items now:
// fewer, more, or batches of another length. An item that has only healed is the same item.
func TestChangedSources(t *testing.T) {
	n, bad, size := 20, true, 2
	seq := FromSeq(func(context.Context, int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(i, nil) {
					return
				}
			}
		}
	})
	odd := func(i int) bool { return i%2 == 1 }
	failing := Map(seq, 0, func(_ context.Context, i int) (int, error) {
		if bad && i%4 == 0 {
			return 0, errBad
		}
		return i, nil
	})
	batches := Map(Batch(seq, 4, List[int]), 0, func(_ context.Context, b []int) ([]int, error) {
		if bad && b[0]%8 == 0 {
			return nil, errBad
		}
		return b[:min(size, len(b))], nil
	})
	for name, c := range map[string]struct {
		s       Stream[int]
		change  func()
		refused bool
	}{
		"Shuffle, shorter":           {seq.Shuffle(40, 1), func() { n = 17 }, true},
		"Shuffle, longer":            {seq.Shuffle(40, 1), func() { n = 22 }, true},
		"Shuffle of Filter, healed":  {failing.Filter(odd).Shuffle(9, 1), func() { bad = false }, true},
		"Shuffle of Unbatch, healed": {Unbatch(batches).Shuffle(9, 1), func() { bad = false }, true},
		"Unbatch, longer":            {Unbatch(batches), func() { size = 3 }, true},
		"Shuffle, healed":            {failing.Shuffle(9, 1), func() { bad = false }, false},
		"Take of Unbatch, healed":    {Unbatch(batches).Take(7), func() { bad = false }, false},
	} {
		n, bad, size = 20, true, 2
		var at Cursor
		given := 0
		for range c.s.Run(t.Context(), &at) {
			if given++; given == 3 || name == "Unbatch, longer" && given == 2 {
				break
			}
		}
		at = throughJSON(t, at)
		c.change()
		got := outcomes(c.s.Run(t.Context(), &at))
		if refused := strings.Contains(fmt.Sprint(got), "the source has changed"); refused != c.refused {
			t.Errorf("%s: after the change %v", name, got)
		}
	}
}

// TestCountsOutOfRange: a count in a damaged cursor that no run can have made is refused. It is not the end of the epoch.
func TestCountsOutOfRange(t *testing.T) {
	s := Indices(Sequential(9))
	for name, c := range map[string]struct {
		s  Stream[int]
		at stage
	}{
		"Chain":   {Chain(s, s), stage{By: "Chain(2)", N: 2}},
		"Repeat":  {s.Repeat(3), stage{By: "Repeat(3)", N: 3}},
		"Shuffle": {s.Shuffle(4, 1), stage{By: "Shuffle(4, seed 1)", N: 4}},
		"Unbatch": {Unbatch(Batch(s, 2, List[int])), stage{By: "Unbatch", N: 2, M: 2}},
	} {
		got := outcomes(c.s.Run(t.Context(), &Cursor{Pos: 3, State: c.at}))
		if len(got) != 1 || !strings.Contains(got[0], "dataloader: cursor {epoch 0, pos 3}: ") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestUnorderedIsNoStream: an Unordered loader's Stream yields one error that says what to do; its Run and Epoch work.
func TestUnorderedIsNoStream(t *testing.T) {
	loader := newLoader(t, numbers(6), Options{BatchSize: 2, Unordered: true, Workers: 2})
	for _, s := range []Stream[int]{Unbatch(loader.Stream()), Unbatch(loader.Stream().Prefetch(2))} {
		got := outcomes(s.Epoch(t.Context(), 0))
		equal(t, "outcomes", len(got), 1)
		saysAll(t, errors.New(got[0]), "dataloader: ", "Options.Unordered", "use its Run")
	}
	equal(t, "batches", len(collect(t, loader.Epoch(t.Context(), 0))), 3)
}

// TestCursorsOfOthers: the cursor of an Unordered loader fits only its own shard and batch size, also if nothing was ahead.
// A loader and the stream of its sampler refuse each other's cursors.
func TestCursorsOfOthers(t *testing.T) {
	after := func(opts Options) Cursor {
		var at Cursor
		for _, err := range newLoader(t, numbers(20), opts).Run(t.Context(), &at) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		return throughJSON(t, at)
	}
	mine := Options{BatchSize: 2, Unordered: true, Shard: Shard{0, 2}}
	for _, other := range []Options{
		{BatchSize: 2, Unordered: true, Shard: Shard{1, 2}}, {BatchSize: 2, Shard: Shard{1, 2}}, {BatchSize: 4, Unordered: true}, {BatchSize: 4, Shard: Shard{0, 2}},
	} {
		at := after(mine)
		got := outcomes(newLoader(t, numbers(20), other).Run(t.Context(), &at))
		equal(t, "errors", len(got), 1)
		saysAll(t, errors.New(got[0]), "made out of order by shard {0 2} with batches of 2")
	}
	for _, own := range []Options{mine, {BatchSize: 2, Shard: Shard{0, 2}, Workers: 2}} {
		at := after(mine)
		equal(t, "the rest", len(collect(t, newLoader(t, numbers(20), own).Run(t.Context(), &at))), 4)
	}
	at := after(Options{})
	saysAll(t, errors.New(outcomes(Indices(Sequential(20)).Run(t.Context(), &at))[0]), "made by Sequential(20), this is Indices(Sequential(20))")
	for _, err := range Indices(Sequential(20)).Run(t.Context(), ptr(Cursor{})) {
		equal(t, "no error", err, nil)
		break
	}
	at = Cursor{}
	for range Indices(Sequential(20)).Run(t.Context(), &at) {
		break
	}
	saysAll(t, errors.New(outcomes(newLoader(t, numbers(20), Options{}).Run(t.Context(), &at))[0]), "made by Indices(Sequential(20)), this is Sequential(20)")
}

// TestEndlessAndEmpty: a context ends what has no items of its own: many rounds of an empty stream, and the skipping of
// FromSeq at a resume.
func TestEndlessAndEmpty(t *testing.T) {
	for name, c := range map[string]struct {
		s  Stream[int]
		at Cursor
	}{
		"Repeat": {Indices(Sequential(0)).Repeat(math.MaxInt32), Cursor{}},
		"FromSeq": {FromSeq(func(context.Context, int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for yield(1, nil) {
				}
			}
		}), Cursor{Pos: math.MaxInt, State: stage{By: "FromSeq"}}},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errBad)
		equal(t, name, outcomes(c.s.Run(ctx, &c.at)), "[error bad sample]")
	}
}

// TestTooFar: numbers that would overflow are refused with what is allowed.
func TestTooFar(t *testing.T) {
	far := Cursor{Epoch: math.MaxInt / 3}
	resized := newLoader(t, numbers(5), Options{Sampler: Resize(Sequential(5), 20)})
	saysAll(t, errors.New(outcomes(resized.Run(t.Context(), &far))[0]), "Resize: epoch", "too far")
	far = Cursor{Epoch: math.MaxInt / 3}
	saysAll(t, errors.New(outcomes(counting(1).Repeat(7).Run(t.Context(), &far))[0]), "Repeat: epoch", "of 7 epochs is too far")
	_, err := New(numbers(5), List[int], Options{Shard: Shard{0, math.MaxInt}})
	saysAll(t, err, "Options.Shard", "Count must be 0 to 1048576")
	mustPanic(t, func() { counting(1).Shard(Shard{0, math.MaxInt}) }, "Stream.Shard", "Count must be 0 to 1048576")
	mustPanic(t, func() { counting(1).Prefetch(math.MaxInt) }, "Prefetch: n is", "must be 1 to 16777216")
}

// TestDescriptions: batch samplers that differ describe themselves differently, and a description that is not UTF-8
// survives a trip through JSON.
func TestDescriptions(t *testing.T) {
	if a, b := describe(Batches(Sequential(7), 3, false)), describe(Batches(Sequential(7), 3, true)); a == b {
		t.Errorf("%s and %s", a, b)
	}
	loader := newLoader(t, numbers(4), Options{Sampler: sampler{4, "caf\xe9", Sequential(4).Order}})
	var at Cursor
	for range loader.Run(t.Context(), &at) {
		break
	}
	at = throughJSON(t, at)
	equal(t, "the rest", collect(t, loader.Run(t.Context(), &at)), "[[1] [2] [3]]")
}

// TestRandSalts: two augmentations of one sample draw different numbers: a Map and the Map before it, and what is inside
// and outside a Cache, in every epoch.
func TestRandSalts(t *testing.T) {
	draw := func(ctx context.Context, drawn []uint64) ([]uint64, error) {
		return append(slices.Clone(drawn), Rand(ctx).Uint64()), nil
	}
	first := func(ctx context.Context, _ int) ([]uint64, error) { return draw(ctx, nil) }
	for workers := range 3 {
		mapped := Map(Map(Map(Indices(Sequential(5)), workers, first), workers, draw), workers, draw)
		cached := newLoader(t, Transform(Cache(Transform(Cache(Transform(numbers(5), first)), draw)), draw), Options{Workers: workers})
		for epoch := range 2 {
			seen := slices.Concat(slices.Concat(collect(t, cached.Epoch(t.Context(), epoch))...)...)
			seen = append(seen, slices.Concat(collect(t, mapped.Epoch(WithSeed(t.Context(), 1), epoch))...)...)
			slices.Sort(seen)
			equal(t, "different numbers", len(slices.Compact(seen)), 30)
		}
	}
}

// TestRandElsewhere: a context that no loader made gives no generator, unless WithSeed made it, because every sample would
// draw the same numbers.
func TestRandElsewhere(t *testing.T) {
	mustPanic(t, func() { Rand(t.Context()) }, "Rand: the context is from no loader", "WithSeed")
	equal(t, "WithSeed", Rand(WithSeed(t.Context(), 1)).Uint64(), Rand(WithSeed(t.Context(), 1)).Uint64())
	loader := newLoader(t, Func(2, func(context.Context, int) (int, error) { return Rand(context.Background()).Int(), nil }), Options{Workers: 2})
	saysAll(t, errors.New(outcomes(loader.Epoch(t.Context(), 0))[0]), "sample 0", "pass on the context that Get was given")
}

// TestFreeMemory: New takes no memory for batches that are not there yet, and Map does not hold on to an item that f has used.
func TestFreeMemory(t *testing.T) {
	type large [100 << 10]byte
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	loader := must(New(numbers(1<<20), func(dst large, _ []int) (large, error) { return dst, nil }, Options{Workers: 64, Prefetch: 16}))
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 1<<20 {
		t.Errorf("New took %d bytes", taken)
	}
	equal(t, "batches", loader.Len(), 1<<20)

	inputs := make(chan weak.Pointer[large], 20)
	stream := Map(Map(Indices(Sequential(20)), 0, func(context.Context, int) (*large, error) { return new(large), nil }), 1, func(_ context.Context, in *large) (int, error) {
		inputs <- weak.Make(in)
		return 0, nil
	})
	for _, err := range stream.Epoch(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		for range 7 {
			<-inputs
		}
		for range 1 { // one that f has used and that waits in the cache
			p := <-inputs
			for range 10 {
				runtime.GC()
			}
			if p.Value() != nil {
				t.Error("an item that f has used is kept")
			}
		}
		break
	}
}

// TestHelpfulErrors: messages say what to do.
func TestHelpfulErrors(t *testing.T) {
	loader := newLoader(t, numbers(20), Options{})
	mustPanic(t, func() { loader.Run(t.Context(), nil) }, "Run: the cursor is nil", "new(Cursor)")
	var at Cursor
	for range loader.Run(t.Context(), &at) {
		break
	}
	grown := newLoader(t, numbers(21), Options{})
	saysAll(t, errors.New(outcomes(grown.Run(t.Context(), &at))[0]), "made by Sequential(20), this is Sequential(21)", "same data and options, or start at Cursor{Epoch: 0}")
	_, err := Stack(Tensor[int]{}, []Tensor[int]{{Data: []int{1, 2}}})
	saysAll(t, err, "shape []", "2 elements", "set Shape")
	pairs := CollatePair(Stack[int], func(dst int, _ []int) (int, error) { return dst, errBad })
	_, err = pairs(Pair[Tensor[int], int]{}, []Pair[Tensor[int], int]{{First: Tensor[int]{Data: []int{1, 2}}}})
	saysAll(t, err, "the first of each pair: Stack")
	_, err = pairs(Pair[Tensor[int], int]{}, []Pair[Tensor[int], int]{{First: Tensor[int]{Data: []int{1}}}})
	saysAll(t, err, "the second of each pair: bad sample")
	_, err = Files(os.DirFS("nowhere"))
	saysAll(t, err, "dataloader: Files: nowhere: ", "open .")
	_, _, err = Folder(os.DirFS("nowhere"))
	saysAll(t, err, "dataloader: Folder: nowhere: ", "open .")
}

// TestSourcesThatMisbehave: a source whose cleanup panics, or that goes on after yield has returned false, ends no process.
// At the end of the epoch the panic is the last error, for any number of workers. After a break nobody is left to hear of it.
func TestSourcesThatMisbehave(t *testing.T) {
	source := func(deaf bool) Stream[int] {
		return func(_ context.Context, from Cursor) iter.Seq2[Item[int], error] {
			return func(yield func(Item[int], error) bool) {
				defer func() {
					if !deaf {
						panic("on closing")
					}
				}()
				for pos := from.Pos; pos < 3; pos++ {
					if !yield(Item[int]{Value: pos, Next: Cursor{from.Epoch, pos + 1, "mine"}}, nil) && !deaf {
						return
					}
				}
			}
		}
	}
	for workers := range 3 {
		synctest.Test(t, func(t *testing.T) {
			for _, s := range []Stream[int]{Map(source(false), workers, quick), source(false).Prefetch(workers + 1)} {
				got := outcomes(s.Epoch(t.Context(), 0))
				equal(t, "outcomes", len(got), 4)
				saysAll(t, errors.New(got[3]), "dataloader: ", "panic: on closing")
			}
			for _, deaf := range []bool{false, true} {
				for _, s := range []Stream[int]{Map(source(deaf), workers+1, quick), source(deaf).Prefetch(workers + 1)} {
					for _, err := range s.Epoch(t.Context(), 0) {
						equal(t, "error", err, nil)
						break
					}
				}
			}
		})
	}
}

// TestMixStopsAll: a panic in the cleanup of one source of a Mix does not leave the others running. (The bubble would
// report their goroutines.)
func TestMixStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dying := Stream[int](func(_ context.Context, from Cursor) iter.Seq2[Item[int], error] {
			return func(yield func(Item[int], error) bool) {
				defer panic("on closing")
				yield(Item[int]{Next: Cursor{from.Epoch, from.Pos + 1, "mine"}}, nil)
			}
		})
		mustPanic(t, func() {
			n := 0
			for range Mix(MixOptions{}, counting(9).Prefetch(2), dying, counting(9).Prefetch(2), dying, counting(9).Prefetch(2)).Epoch(t.Context(), 0) {
				if n++; n == 5 {
					break
				}
			}
		}, "on closing")
	})
}
