package recipes

// Texts of different lengths.
//
//	Example_packedTexts      packed into rows, without padding
//	Example_packedDocuments  whole documents, with positions, masks and targets
//	Example_paddedTexts      padded
//	Example_tokenBudget      batches by a budget of tokens
//	Example_bucketsOnRanks   similar lengths on all ranks
//	Example_fewShapes        few shapes, for frameworks that compile one graph a shape
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"

	"dataloader"
)

// Batch takes any Collate, here Pad. A slow collate function may be a Map over
// lists, here in two workers.
func Example_paddedTexts() {
	words := dataloader.Map(dataloader.Indices(dataloader.Sequential(3)), 0,
		func(_ context.Context, i int) ([]rune, error) {
			return []rune([]string{"pad", "to", "longest"}[i]), nil
		})
	for padded, err := range dataloader.Batch(words, 2,
		dataloader.Pad('.')).Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(padded.Shape, padded.Lengths, string(padded.Data))
	}
	lists := dataloader.Batch(words, 2, dataloader.List[[]rune])
	joined := dataloader.Map(lists, 2, func(_ context.Context, list [][]rune) (string, error) {
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

// A sameWidth is a batch sampler whose batches of a step have similar widths.
type sameWidth struct {
	dataloader.BatchSampler // of Buckets
	lengths                 []int
	ranks                   int
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
	step := dataloader.Random(steps, 1).Order(epoch)
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
// Copy the type sameWidth, too.
func Example_bucketsOnRanks() {
	const ranks = 3
	var lengths []int // of the texts, from 4 to 108 runes
	for i := range 80 {
		lengths = append(lengths, 4+i*i/60)
	}
	texts := dataloader.Func(len(lengths), func(_ context.Context, i int) ([]rune, error) {
		return make([]rune, lengths[i]), nil
	})
	buckets, err := dataloader.Buckets(lengths, 240, 1)
	if err != nil {
		log.Fatal(err)
	}
	for _, sampler := range []dataloader.BatchSampler{buckets, sameWidth{buckets, lengths, ranks}} {
		widths := make([][ranks]int, (sampler.Len()+ranks-1)/ranks)
		for rank := range ranks {
			loader, err := dataloader.New(texts, dataloader.Pad('.'), dataloader.Options{
				BatchSampler: sampler, Rank: dataloader.Rank{Index: rank, Count: ranks},
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

// Frameworks that compile a graph for each shape of a batch need few shapes:
// GoMLX by default has room for 32 and then fails, others compile for minutes.
// Pad alone makes nearly as many as there are batches, and Buckets one for each
// number of rows and width. Here lengths are rounded up to a power of two for
// Buckets, so that a bucket has one width, and a Collate around Pad fills each
// batch up to that width and to as many rows as the budget allows. Rows without
// a text have the length 0: mask them, and divide by what is not masked. Steps
// of half or a quarter of a power of two make more shapes, with less padding.
func Example_fewShapes() {
	const budget, pad = 1 << 14, 0 // tokens in a batch
	roundUp := func(length int) int { return max(16, 1<<bits.Len(uint(length-1))) }
	fill := func(dst dataloader.Padded[int32], texts [][]int32) (dataloader.Padded[int32], error) {
		width := 0
		for _, text := range texts {
			width = max(width, roundUp(len(text)))
		}
		rows := make([][]int32, budget/width)
		copy(rows, texts)
		rows[0] = slices.Repeat([]int32{pad}, width) // Pad pads to the longest
		b, err := dataloader.Pad(int32(pad))(dst, rows)
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
	texts := dataloader.Func(n, func(_ context.Context, i int) ([]int32, error) {
		return make([]int32, lengths[i]), nil
	})
	buckets, err1 := dataloader.Buckets(lengths, budget, 1)
	few, err2 := dataloader.Buckets(rounded, budget, 1)
	if err := errors.Join(err1, err2); err != nil {
		log.Fatal(err)
	}
	show := func(name string, opts dataloader.Options,
		collate dataloader.Collate[[]int32, dataloader.Padded[int32]]) {
		loader, err := dataloader.New(texts, collate, opts)
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
	show("Batches of 32", dataloader.Options{BatchSize: 32, Shuffle: true},
		dataloader.Pad(int32(pad)))
	show("Buckets", dataloader.Options{BatchSampler: buckets}, dataloader.Pad(int32(pad)))
	show("Buckets of rounded lengths", dataloader.Options{BatchSampler: few}, fill)
	// Output:
	// Batches of 32: 625 batches, 18 % full, of 528 shapes, the 33rd in batch 32
	// Buckets: 359 batches, 94 % full, of 194 shapes, the 33rd in batch 40
	// Buckets of rounded lengths: 436 batches, 68 % full, of 10 shapes
}

// Batches by a budget of tokens, from a stream: a text joins the batch if all
// of it, padded to the longest text, stays within the budget; otherwise it
// begins the next batch. The Next of a batch is that of its last text, so the
// stage needs no State, and a resume reads the text again that did not fit. A
// text above the budget is a batch of its own, and a failed text passes alone.
// On ranks put Shard after the stage, since budgets make other numbers of
// batches of other texts.
func Example_tokenBudget() {
	const budget = 12
	type batch = [][]rune
	inBudget := func(texts dataloader.Stream[[]rune]) dataloader.Stream[batch] {
		return dataloader.NewStage(texts, false, func(
			ctx context.Context, texts dataloader.Stream[[]rune], from dataloader.Cursor,
		) iter.Seq2[dataloader.Item[batch], error] {
			return func(yield func(dataloader.Item[batch], error) bool) {
				send := func(item dataloader.Item[batch]) bool {
					if ctx.Err() != nil { // since the text was read that did not fit
						yield(dataloader.Item[batch]{}, context.Cause(ctx))
						return false
					}
					return yield(item, nil)
				}
				var next dataloader.Item[batch]
				longest := 0
				for text, err := range texts.Items(ctx, from) {
					if err != nil { // the source cannot be continued, and so the stage cannot
						yield(dataloader.Item[batch]{}, err)
						return
					}
					longest = max(longest, len(text.Value))
					n := len(next.Value)
					if n > 0 && (text.Err != nil || (n+1)*longest > budget) {
						if !send(next) {
							return
						}
						next = dataloader.Item[batch]{}
						longest = len(text.Value)
					}
					if text.Err == nil {
						next = dataloader.Item[batch]{Value: append(next.Value, text.Value),
							Next: text.Next}
					} else if !send(dataloader.Item[batch]{Err: text.Err, Next: text.Next}) {
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
	texts := dataloader.Map(dataloader.Indices(dataloader.Sequential(len(words))), 2, runes)
	padded := dataloader.Map(inBudget(texts), 2,
		func(_ context.Context, b batch) (dataloader.Padded[rune], error) {
			return dataloader.Pad('.')(dataloader.Padded[rune]{}, b)
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

// packTexts packs tokenized texts into rows of length tokens, without padding:
// it concatenates 1,000 texts and divides their tokens. Prefetch tokenizes the
// next 1,000 texts while the loop uses the rows of these.
func packTexts[T any](texts dataloader.Stream[[]T],
	length int) dataloader.Stream[dataloader.Tensor[T]] {
	divide := func(_ []dataloader.Tensor[T], texts [][]T) (rows []dataloader.Tensor[T], err error) {
		for row := range slices.Chunk(slices.Concat(texts...), length) {
			if len(row) == length {
				rows = append(rows, dataloader.Tensor[T]{Data: row, Shape: []int{length}})
			}
		}
		if len(rows) == 0 && len(texts) == 1000 {
			err = errors.New("1,000 texts do not fill a row: take more texts at once")
		}
		return rows, err
	}
	rows := dataloader.Unbatch(dataloader.Batch(texts, 1000, divide).Prefetch(1))
	return dataloader.NewStage(rows, true, func(
		ctx context.Context, rows dataloader.Stream[dataloader.Tensor[T]], from dataloader.Cursor,
	) iter.Seq2[dataloader.Item[dataloader.Tensor[T]], error] {
		return func(yield func(dataloader.Item[dataloader.Tensor[T]], error) bool) {
			empty := from.Pos == 0
			for item, err := range rows.Items(ctx, from) {
				empty = false
				if !yield(item, err) {
					return
				}
			}
			if empty { // a loop over epochs would go on, and train nothing
				err := fmt.Errorf("all texts of epoch %d do not fill a row", from.Epoch)
				yield(dataloader.Item[dataloader.Tensor[T]]{}, err)
			}
		}
	})
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
func Example_packedTexts() {
	const length = 8
	texts := []string{"To be", "or", "not to be", "that", "is", "the question", "Whether", "'tis"}
	tokenize := func(_ context.Context, i int) ([]rune, error) {
		return []rune(texts[i] + "."), nil
	}
	// Random shuffles the texts
	tokens := dataloader.Map(dataloader.Indices(dataloader.Sequential(len(texts))), 2, tokenize)
	batches := dataloader.Batch(packTexts(tokens, length), 2, dataloader.Stack[rune])

	// train is one process. It resumes a checkpoint, takes one step and returns
	// the next checkpoint.
	train := func(saved []byte) ([]byte, error) {
		var at dataloader.Cursor
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

// A doc is the tokens of a document, the last of which ends it.
type doc = []int32

// A packing is the number of tokens in a row, 2 or more.
type packing int

// divide divides a document that is longer than a row. Its parts share a token,
// so that each token but the first is a target once.
func (length packing) divide(_ context.Context, d doc) (parts []doc, err error) {
	for n := int(length); len(d) > n; d = d[n-1:] {
		parts = append(parts, d[:n])
	}
	if len(d) > 1 { // otherwise it has no target
		parts = append(parts, d)
	}
	return parts, nil
}

// pack puts documents into rows: the longest first, each into the first row
// that has room for it.
func (length packing) pack(_ context.Context, docs []doc) (rows [][]doc, err error) {
	slices.SortStableFunc(docs, func(a, b doc) int { return len(b) - len(a) })
	var room []int // in each row
	for _, d := range docs {
		r := slices.IndexFunc(room, func(free int) bool { return free >= len(d) })
		if r < 0 { // in no row
			r = len(rows)
			rows = append(rows, nil)
			room = append(room, int(length))
		}
		rows[r] = append(rows[r], d)
		room[r] -= len(d)
	}
	return rows, nil
}

// A packedBatch says what keeps the documents apart, in four arrays of the
// shape [rows length]. A token may attend to those of its own document only (a
// block mask): documents numbers the documents of a row from 1 on, and the
// padding has 0. Positions begin again with each document. A target is the next
// token of the same document. At the end of a document and in the padding the
// target is -100, for which there must be no loss: divide the sum of the losses
// by the number of the other targets, over all ranks.
type packedBatch struct{ tokens, documents, positions, targets []int32 }

// collate makes a batch of rows.
func (length packing) collate(_ packedBatch, rows [][]doc) (packedBatch, error) {
	n := len(rows) * int(length)
	b := packedBatch{make(doc, n), make(doc, n), make(doc, n), slices.Repeat(doc{-100}, n)}
	for r, docs := range rows {
		at := r * int(length)
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

// Whole documents are packed into rows, as fine-tuning wants it. The more
// documents are packed together, the fuller the rows: documents of 140 tokens
// on average fill rows of 512 to 97 % if 64 are packed together, and to 99.8 %
// if 1,024 are. A resume packs the same documents again, and goes on with the
// next row. Shuffle the rows, because rows of long documents come before those
// of short ones. A failed document fails all that are packed with it; OnError
// before the first Unbatch drops it instead, but then a resume may be refused
// if a document fails for a moment: try the cursor again. If it failed before
// the checkpoint, a Shuffle refuses the cursor for ever.
func Example_packedDocuments() {
	texts := dataloader.Slice[doc]{{11, 12, 13}, {}, {21, 22, 23, 24, 25, 26, 27, 28, 29}, {31, 32}}
	p := packing(8)
	docs := dataloader.Map(dataloader.Indices(dataloader.Sequential(len(texts))), 2, texts.Get)
	parts := dataloader.Unbatch(dataloader.Map(docs, 0, p.divide))
	together := dataloader.Batch(parts, 1024, dataloader.List[doc])
	rows := dataloader.Unbatch(dataloader.Map(together, 2, p.pack))
	for b, err := range dataloader.Batch(rows, 1, p.collate).Epoch(context.Background(), 0) {
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
