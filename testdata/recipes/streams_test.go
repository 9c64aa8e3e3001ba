package recipes

// Sources and stages of your own.
//
//	Example_stdin      lines of the standard input
//	Example_ownSource  a source that resumes where it was
//	Example_ownStage   a stage with a state
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

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

// A place is the State of the cursors of numbersOf: the offset of the next
// line.
type place struct {
	By     string `json:"by"` // tells its cursors from those of other streams
	Offset int64  `json:"offset"`
}

// numbersOf is a source: a function from a cursor to the items after it. It
// reads numbers, one in a line. A resume seeks, where FromSeq would read the
// file again.
func numbersOf(file io.ReaderAt, by string) dataloader.Stream[int] {
	return dataloader.NewStream(func(ctx context.Context,
		from dataloader.Cursor) iter.Seq2[dataloader.Item[int], error] {
		return func(yield func(dataloader.Item[int], error) bool) {
			var at place
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
					err = context.Cause(ctx) // an item is ready: has ctx ended?
				}
				if err != nil {
					yield(dataloader.Item[int]{}, err)
					return
				}
				at = place{by, at.Offset + int64(len(line))}
				next := dataloader.Cursor{Epoch: from.Epoch, Pos: pos, State: at}
				item := dataloader.Item[int]{Next: next} // Next is the cursor after the item
				if n, err := strconv.Atoi(strings.TrimSuffix(line, "\n")); err == nil {
					item.Value = n
				} else {
					item.Err = fmt.Errorf("%q is not a number", line) // Value stays zero
				}
				if !yield(item, nil) {
					return
				}
			}
		}
	})
}

// A source of your own resumes where it was. Put in your own file, State and
// items. The helper checkStream in dataloader_test.go tests a stream of your
// own.
func Example_ownSource() {
	numbers := numbersOf(strings.NewReader("1\n22\nthree\n4\n5"), "numbers.txt")
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

// A before is the State of the cursors of neighbours: the source's cursor
// before the last item, because a resume must read that item again.
type before struct {
	By     string            `json:"by"`
	Source dataloader.Cursor `json:"source"`
}

// neighbours is a stage: a function from a stream to a stream. It pairs each
// item with the item before it.
func neighbours(source dataloader.Stream[string]) dataloader.Stream[[2]string] {
	const by = "neighbours"
	return dataloader.NewStage(source, false, func(
		ctx context.Context, source dataloader.Stream[string], from dataloader.Cursor,
	) iter.Seq2[dataloader.Item[[2]string], error] {
		return func(yield func(dataloader.Item[[2]string], error) bool) {
			at := before{Source: dataloader.Cursor{Epoch: from.Epoch}} // of the start of an epoch
			err := from.Load(&at)
			if err == nil && at.By != by && (from.Pos != 0 || from.State != nil) {
				err = fmt.Errorf("%w %v is not of %s", dataloader.ErrCursor, from, by)
			}
			if err != nil {
				yield(dataloader.Item[[2]string]{}, err)
				return
			}
			var last dataloader.Item[string]
			pos := from.Pos - 1 // the first item has no neighbour yet
			// The source looks at ctx when an item is ready.
			for item, err := range source.Items(ctx, at.Source) {
				if err != nil { // the source cannot be continued, and so the stage cannot
					yield(dataloader.Item[[2]string]{}, err)
					return
				}
				if pos++; pos > from.Pos {
					state := before{by, last.Next}
					next := dataloader.Cursor{Epoch: from.Epoch, Pos: pos, State: state}
					out := dataloader.Item[[2]string]{Next: next, Err: cmp.Or(last.Err, item.Err)}
					if out.Err == nil {
						out.Value = [2]string{last.Value, item.Value}
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

// A stage of your own has a State. A stage that decides about each item alone
// needs none: it yields each item with the Next that the item has.
func Example_ownStage() {
	words := dataloader.Slice[string]{"to", "be", "or", "not"}
	pairs := neighbours(dataloader.Map(dataloader.Indices(dataloader.Sequential(len(words))), 2,
		words.Get))
	var at dataloader.Cursor
	for at.Epoch == 0 { // leave the loop and resume after each pair
		for pair, err := range pairs.Run(context.Background(), &at) {
			if err != nil {
				log.Fatal(err)
			}
			state := at.State.(before)
			fmt.Println(pair, "the next loop reads from pos", state.Source.Pos)
			break
		}
	}
	// Output:
	// [to be] the next loop reads from pos 1
	// [be or] the next loop reads from pos 2
	// [or not] the next loop reads from pos 3
}
