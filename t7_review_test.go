package dataloader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSourcesThatDieAtOnce: a stream whose function panics, or ends its goroutine, when it is called is a last error under
// Map with workers and Prefetch.
func TestSourcesThatDieAtOnce(t *testing.T) {
	for what, die := range map[string]func(){"panic: ouch": func() { panic("ouch") }, "runtime.Goexit was called": runtime.Goexit} {
		own := Stream[int](func(context.Context, Cursor) iter.Seq2[Item[int], error] { die(); return nil })
		synctest.Test(t, func(t *testing.T) {
			for _, s := range []Stream[int]{own.Prefetch(2), Map(own, 2, quick)} {
				got := outcomes(s.Epoch(t.Context(), 0))
				equal(t, "outcomes", len(got), 1)
				saysAll(t, errors.New(got[0]), "dataloader: the stream: "+what)
			}
		})
	}
}

// TestPanicWithSampleError: a panic whose value is a *SampleError ends the loop. It is no item that the loop may skip.
func TestPanicWithSampleError(t *testing.T) {
	failed := &SampleError{Err: errBad}
	for name, seq := range map[string]iter.Seq2[[]int, error]{
		"Trace":  newLoader(t, numbers(3), Options{Trace: func(Timing) { panic(failed) }}).Epoch(t.Context(), 0),
		"stream": Batch(FromSeq(func(context.Context, int) iter.Seq2[int, error] { panic(failed) }), 1, List[int]).Epoch(t.Context(), 0),
	} {
		for _, err := range seq {
			if bad := (*SampleError)(nil); err == nil || errors.As(err, &bad) || !errors.Is(err, errBad) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestDeafSources: when the loop is left or its context ends, a source that does not look at its context is asked for one
// more item at most.
func TestDeafSources(t *testing.T) {
	for workers := range 3 {
		synctest.Test(t, func(t *testing.T) {
			deaf := Stream[int](func(_ context.Context, from Cursor) iter.Seq2[Item[int], error] {
				return func(yield func(Item[int], error) bool) {
					for pos := from.Pos; ; pos++ {
						time.Sleep(time.Second)
						if !yield(Item[int]{Value: pos, Next: Cursor{from.Epoch, pos + 1, "mine"}}, nil) {
							return
						}
					}
				}
			})
			for _, s := range []Stream[int]{Map(deaf, workers, quick), deaf.Prefetch(100)} {
				start := time.Now()
				for _, err := range s.Epoch(t.Context(), 0) {
					equal(t, "error", err, nil)
					break
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				got := []string{}
				for _, err := range s.Epoch(ctx, 0) {
					got = append(got, fmt.Sprint(err))
					cancel(errBad)
				}
				equal(t, "outcomes", got, []any{nil, errBad})
				if spent := time.Since(start); spent > 5*time.Second {
					t.Errorf("%d workers: a break and a cancel took %v", workers, spent)
				}
			}
		})
	}
}

// TestOrderedAfterUnordered: an ordered loader resumes the cursor of an Unordered one with steps ahead, and so does any
// loader with the cursors that it makes meanwhile.
func TestOrderedAfterUnordered(t *testing.T) {
	ahead := Cursor{Pos: 1, State: loaderState{By: "Sequential(8)", Done: []span{{1, 2}, {4, 5}}, Shard: &Shard{0, 1}, Size: 1}}
	for _, unordered := range []bool{false, true} {
		at := ahead
		var got []int
		for at.Epoch == 0 {
			for batch, err := range newLoader(t, numbers(8), Options{Unordered: unordered}).Run(t.Context(), &at) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, batch...)
				break
			}
			at = throughJSON(t, at)
			unordered = !unordered
		}
		equal(t, "the rest", got, "[1 3 4 6 7]")
	}
}

// TestShorterAndHealed: a batch that is not there any more at a resume, and a window that has lost an item but not its end,
// are refused.
func TestShorterAndHealed(t *testing.T) {
	n := 8
	seq := FromSeq(func(context.Context, int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := 0; i < n && yield(i, nil); i++ {
			}
		}
	})
	var at Cursor
	for v, err := range Unbatch(Batch(seq, 4, List[int])).Run(t.Context(), &at) {
		if err != nil || v == 5 {
			break
		}
	}
	n = 4
	saysAll(t, errors.New(outcomes(Unbatch(Batch(seq, 4, List[int])).Run(t.Context(), &at))[0]), "the source has changed", "it ends before")
	for seed := range uint64(20) {
		sick := true
		s := Map(Indices(Sequential(4)), 0, func(_ context.Context, i int) (int, error) {
			if sick && i == 2 {
				return 0, errBad
			}
			return i, nil
		}).Filter(func(i int) bool { return i != 2 }).Shuffle(8, seed)
		var cursors []Cursor
		for item, err := range s(t.Context(), Cursor{}) {
			if err != nil {
				t.Fatal(err)
			}
			cursors = append(cursors, item.Next)
		}
		sick = false
		for k, at := range cursors[:3] {
			if at.State.(*stage).Again != 4 {
				continue // the first window of the epoch is shorter
			}
			saysAll(t, errors.New(outcomes(s.Run(t.Context(), &at))[0]), "the source has changed: a window of 4 items", "has 3 items")
			equal(t, "the cursor", at, cursors[k])
		}
	}
}

// TestRewrittenCursors: a cursor that another program has written anew, with sorted keys and escaped characters, is the same.
func TestRewrittenCursors(t *testing.T) {
	order := sampler{9, "größe", Sequential(9).Order}
	s := Zip(Indices(order), Indices(Sequential(9))).Shuffle(5, 6)
	want := outcomes(s.Epoch(t.Context(), 0))
	k := 0
	for item, err := range s(t.Context(), Cursor{}) {
		if err != nil {
			t.Fatal(err)
		}
		k++
		var fields any
		must(0, json.Unmarshal(must(json.Marshal(item.Next)), &fields))
		text := strings.ReplaceAll(string(must(json.MarshalIndent(fields, "", " "))), "ö", `\u00f6`)
		var at Cursor
		must(0, json.Unmarshal([]byte(text), &at))
		equal(t, "the rest", outcomes(s.Run(t.Context(), &at)), want[k:])
	}
}

// TestRandBetweenSamples: the source of a Map has no generator of its own, which every item would share.
func TestRandBetweenSamples(t *testing.T) {
	source := FromSeq(func(ctx context.Context, _ int) iter.Seq2[int, error] { return one(Rand(ctx).Int(), nil) })
	for workers := range 2 {
		got := outcomes(Map(source, workers, quick).Epoch(WithSeed(t.Context(), 1), 0))
		saysAll(t, errors.New(got[0]), "Rand: the context is from no loader")
	}
}

// TestDamagedCounts: counts in a cursor that no run can have made are refused.
func TestDamagedCounts(t *testing.T) {
	s := Indices(Sequential(9))
	source := Cursor{Pos: 2, State: stage{By: "Indices(Sequential(9))"}}
	for name, c := range map[string]struct {
		s  Stream[int]
		at Cursor
	}{
		"Shuffle": {s.Shuffle(40, 1), Cursor{Pos: 3, State: stage{By: "Shuffle(40, seed 1)", N: 99, M: 1, Source: source, Again: 7, End: Cursor{Pos: 9, State: stage{By: "Indices(Sequential(9))"}}}}},
		"Unbatch": {Unbatch(Batch(s, 4, List[int])), Cursor{Pos: 3, State: stage{By: "Unbatch", N: 99, Again: 4, End: Cursor{Pos: 4, State: stage{By: "Indices(Sequential(9))"}}}}},
		"Shard":   {s.Shard(Shard{1, 3}), Cursor{Pos: 2, State: stage{By: "Shard", N: math.MaxInt - 1, Source: source}}},
		"Take":    {s.Take(5), Cursor{Pos: 100, State: stage{By: "Take(5)", Source: source}}},
		"epoch":   {s, Cursor{Epoch: math.MaxInt}},
	} {
		got := outcomes(c.s.Run(t.Context(), &c.at))
		if len(got) != 1 || !strings.Contains(got[0], "dataloader: cursor {epoch ") {
			t.Errorf("%s: %v", name, got)
		}
	}
}
