package recipes

// Sources and stages of your own.
//
//	Example_stdin      lines of the standard input
//	Example_ownSource  a source that resumes where it was
//	Example_ownStage   a stage with a state
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader".

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log"
	"math"
	"strconv"
	"strings"

	"dataloader"
)

// FromSeq makes a stream of any sequence, here of lines. The lines are
// shuffled, filtered, mapped and read ahead, and a checkpoint in the middle of
// all that resumes.
func Example_stdin() {
	lines := dataloader.FromSeq(func(ctx context.Context, epoch int) iter.Seq2[string, error] {
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
	upper := dataloader.Map(long, 2, func(_ context.Context, s string) (string, error) {
		return strings.ToUpper(s), nil
	}).Prefetch(3)

	var at dataloader.Cursor
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

	var resumed dataloader.Cursor
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

// A source of your own is a function from a cursor to the items after it. This
// one reads numbers, one in a line. The State of its cursors is the offset of
// the next line, so a resume seeks, where FromSeq would read the file again.
// Put in your own file, State and items. The helper checkStream in
// dataloader_test.go tests a stream of your own.
func Example_ownSource() {
	file := strings.NewReader("1\n22\nthree\n4\n5")
	type state struct {
		By     string `json:"by"`
		Offset int64  `json:"offset"`
	}
	const by = "numbers.txt" // tells its cursors from those of other streams
	numbers := dataloader.NewStream(func(ctx context.Context,
		from dataloader.Cursor) iter.Seq2[dataloader.Item[int], error] {
		return func(yield func(dataloader.Item[int], error) bool) {
			var at state
			err := from.Load(&at) // which leaves at as it is at the start of an epoch
			if err == nil && at.By != by && (from.Pos != 0 || from.State != nil) {
				err = fmt.Errorf("%w %v is not of %s", dataloader.ErrCursor, from, by)
			}
			if err != nil {
				yield(dataloader.Item[int]{}, err) // an error of the sequence is its last pair
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
					yield(dataloader.Item[int]{}, err)
					return
				}
				at = state{by, at.Offset + int64(len(line))}
				item := dataloader.Item[int]{Next: dataloader.Cursor{Epoch: from.Epoch, Pos: pos,
					State: at}}
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
	var at dataloader.Cursor
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
func Example_ownStage() {
	type pair = dataloader.Pair[string, string]
	type state struct {
		By     string            `json:"by"`
		Source dataloader.Cursor `json:"source"`
	}
	const by = "neighbours"
	neighbours := func(source dataloader.Stream[string]) dataloader.Stream[pair] {
		return dataloader.NewStage(source, false, func(
			ctx context.Context, source dataloader.Stream[string], from dataloader.Cursor,
		) iter.Seq2[dataloader.Item[pair], error] {
			return func(yield func(dataloader.Item[pair], error) bool) {
				// At the start of an epoch Load leaves at as it is.
				at := state{Source: dataloader.Cursor{Epoch: from.Epoch}}
				err := from.Load(&at)
				if err == nil && at.By != by && (from.Pos != 0 || from.State != nil) {
					err = fmt.Errorf("%w %v is not of %s", dataloader.ErrCursor, from, by)
				}
				if err != nil {
					yield(dataloader.Item[pair]{}, err)
					return
				}
				var last dataloader.Item[string]
				pos := from.Pos - 1 // the first item has no neighbour yet
				// The source looks at ctx before each item.
				for item, err := range source.Items(ctx, at.Source) {
					if err != nil { // the source cannot be continued, and so the stage cannot
						yield(dataloader.Item[pair]{}, err)
						return
					}
					if pos++; pos > from.Pos {
						next := dataloader.Cursor{Epoch: from.Epoch, Pos: pos,
							State: state{by, last.Next}}
						out := dataloader.Item[pair]{Next: next}
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
	words := dataloader.Slice[string]{"to", "be", "or", "not"}
	pairs := neighbours(dataloader.Map(dataloader.Indices(dataloader.Sequential(len(words))), 2,
		words.Get))
	var at dataloader.Cursor
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
