package recipes

// What to do with samples that fail, panic or hang.
//
//	Example_skippedBatches  the loop leaves out a batch that failed
//	Example_droppedSamples  OnError drops samples, up to a budget
//	Example_droppedItems    the same for a stream
//	Example_panics          stop at a panic, with its stack
//	Example_retry           try again, after a pause
//	Example_timeLimit       a limit for each sample
//	Example_hangingSample   which sample hangs
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strconv"
	"strings"
	"time"

	"dataloader"
)

// A batch that cannot be loaded is a *SampleError in its place, and the loop
// may skip it. Any other error is the last: the context has ended, or the
// cursor does not fit.
func Example_skippedBatches() {
	data := dataloader.Func(12, func(ctx context.Context, i int) (int, error) {
		if i == 5 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	loader, err := dataloader.New(data, dataloader.List[int],
		dataloader.Options{BatchSize: 4, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	train := func(ctx context.Context) error {
		var at dataloader.Cursor
		for batch, err := range loader.Run(ctx, &at) {
			var bad *dataloader.SampleError
			if errors.As(err, &bad) {
				fmt.Println("skipped batch", bad.Batch,
					"because of sample", bad.Index, "with", bad.Err)
				continue
			}
			if err != nil {
				return err
			}
			fmt.Println(batch)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	fmt.Println(train(ctx))
	cancel()
	fmt.Println(train(ctx))
	// Output:
	// [0 1 2 3]
	// skipped batch 1 because of sample 5 with unexpected EOF
	// [8 9 10 11]
	// <nil>
	// context canceled
}

// OnError drops bad samples from their batches, here two at most. A third one
// fails its batch, and the body ends the loop. A body that skips each
// SampleError would go on. The budget is not in the cursor: a resume begins
// with a new one.
func Example_droppedSamples() {
	data := dataloader.Func(12, func(ctx context.Context, i int) (int, error) {
		if i%4 == 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	budget := 2
	drop := func(bad *dataloader.SampleError) error {
		if budget--; budget < 0 {
			return bad
		}
		fmt.Println("dropped sample", bad.Index)
		return nil
	}
	loader, err := dataloader.New(data, dataloader.List[int],
		dataloader.Options{BatchSize: 4, Workers: 2, OnError: drop})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	// Output:
	// dropped sample 3
	// [0 1 2]
	// dropped sample 7
	// [4 5 6]
	// dataloader: epoch 0, batch 2, sample 11: unexpected EOF
}

// OnError drops failed items of a stream, here two at most; a third would fail
// its batch. Put OnError behind Shuffle and Unbatch, and before Batch:
// otherwise one failed item fails its whole batch. Count or log what is
// dropped: otherwise a source whose every item fails looks empty. A stream
// knows only the position of an item, so the function of Map should name the
// item in its error. A resume may ask again about an item that was dropped
// before.
func Example_droppedItems() {
	words := []string{"1", "2", "three", "4", "five", "6", "7"}
	numbers := dataloader.Map(dataloader.Indices(dataloader.Sequential(len(words))), 2,
		func(_ context.Context, i int) (int, error) {
			n, err := strconv.Atoi(words[i])
			if err != nil {
				return 0, fmt.Errorf("word %d, %q, is not a number", i, words[i])
			}
			return n, nil
		})
	dropped := 0
	sound := numbers.OnError(func(bad *dataloader.SampleError) error {
		if dropped++; dropped > 2 {
			return bad
		}
		fmt.Println("dropped:", bad.Err)
		return nil
	})
	for batch, err := range dataloader.Batch(sound, 2,
		dataloader.List[int]).Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [1 2]
	// dropped: Map: word 2, "three", is not a number
	// dropped: Map: word 4, "five", is not a number
	// [4 6]
	// [7]
}

// A panic in a worker is the error of its batch. The error is one line, as in
// "panic: ouch (decode.go:12)"; the stack is beside it. A loop that skips every
// *SampleError would skip the panic, too. This one prints the stack, and ends.
func Example_panics() {
	data := dataloader.Func(3, func(ctx context.Context, i int) (string, error) {
		if i == 0 {
			return "", io.ErrUnexpectedEOF
		}
		return []string{"a"}[i], nil // panics for sample 1
	})
	loader, err := dataloader.New(data, dataloader.List[string], dataloader.Options{Workers: 1})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		var bad *dataloader.SampleError
		var bug *dataloader.PanicError
		if errors.As(err, &bug) { // asked first, because a panic is a *SampleError as well
			fmt.Println(bug.Value)
			report := fmt.Sprintf("%v\n\n%s", err, bug.Stack) // for the log
			fmt.Println("says where:", strings.Contains(report, "Example_panics"))
			return
		}
		if errors.As(err, &bad) {
			fmt.Println("skipped:", err)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// skipped: dataloader: epoch 0, batch 0, sample 0: unexpected EOF
	// runtime error: index out of range [1] with length 1
	// says where: true
}

// A Get that fails is tried again, up to three times in all, after a pause that
// ends with the context. Every attempt draws the same random numbers, because
// each WithSeed makes a new generator of one seed. Outside a loader, where Rand
// alone would panic, they depend only on the index. A panic is not tried again.
// Put in your own data and pause.
func Example_retry() {
	const attempts, pause = 3, time.Millisecond // for a server a second, or more
	failures, before := 2, 0
	remote := dataloader.Func(2, func(ctx context.Context, i int) (string, error) {
		number := dataloader.Rand(ctx).Int()
		if failures--; failures >= 0 {
			before = number
			return "", io.ErrUnexpectedEOF
		}
		return fmt.Sprint("sample ", i, ", drawn as in the attempt before: ", number == before), nil
	})
	retried := dataloader.Func(remote.Len(), func(ctx context.Context, i int) (sample string,
		err error) {
		for attempt := range attempts {
			select { // no pause before the first attempt
			case <-time.After(pause * time.Duration(attempt)):
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
			if sample, err = remote.Get(dataloader.WithSeed(ctx, uint64(i)), i); err == nil {
				return sample, nil
			}
		}
		return "", fmt.Errorf("after %d attempts: %w", attempts, err)
	})
	loader, err := dataloader.New(retried, dataloader.List[string], dataloader.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	failures = 2
	fmt.Println(retried.Get(context.Background(), 1)) // outside a loader
	// Output:
	// [sample 0, drawn as in the attempt before: true]
	// [sample 1, drawn as in the attempt before: false]
	// sample 1, drawn as in the attempt before: true <nil>
}

// A time limit for each sample: one that takes too long fails, and OnError
// drops it from its batch. Put in your own data and limit. Get must watch its
// context, as clients of databases and web servers do; a Get that does not
// cannot be stopped. A retry around limited (Example_retry) gives each attempt
// the limit; a limit around the retry covers all attempts.
func Example_timeLimit() {
	data := dataloader.Func(6, func(ctx context.Context, i int) (string, error) {
		if i == 3 {
			<-ctx.Done() // a server that never answers
			return "", ctx.Err()
		}
		return fmt.Sprint("sample ", i), nil
	})
	limited := dataloader.Func(data.Len(), func(ctx context.Context, i int) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		return data.Get(ctx, i)
	})
	drop := func(bad *dataloader.SampleError) error {
		if errors.Is(bad, context.DeadlineExceeded) {
			fmt.Println("too slow: sample", bad.Index)
			return nil
		}
		return bad
	}
	loader, err := dataloader.New(limited, dataloader.List[string],
		dataloader.Options{BatchSize: 3, Workers: 2, OnError: drop})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [sample 0 sample 1 sample 2]
	// too slow: sample 3
	// [sample 4 sample 5]
}

// Which sample hangs? A timer around Get names the sample while it is being
// loaded, when that has taken too long. A second line comes if Get returns
// after all: then the sample is only slow. A timer takes less than a
// microsecond. Put in your own data and limit, and log what helps to find the
// sample: its file, Worker(ctx), the time. In a pipeline put the timer into
// Map's function. Example_timeLimit ends such a Get.
func Example_hangingSample() {
	answer := make(chan bool, 1)
	data := dataloader.Func(8, func(ctx context.Context, i int) (string, error) {
		if i == 5 {
			<-answer // of a server that hangs
		}
		return fmt.Sprint("sample ", i), nil
	})

	const limit = time.Second / 4 // in a program a minute
	watched := dataloader.Func(data.Len(), func(ctx context.Context, i int) (string, error) {
		timer := time.AfterFunc(limit, func() {
			fmt.Println("sample", i, "has been loading for", limit)
			answer <- true // here, so that the loop goes on
		})
		defer func() {
			if !timer.Stop() {
				fmt.Println("sample", i, "has returned")
			}
		}()
		return data.Get(ctx, i)
	})
	loader, err := dataloader.New(watched, dataloader.List[string],
		dataloader.Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [sample 0 sample 1]
	// [sample 2 sample 3]
	// sample 5 has been loading for 250ms
	// sample 5 has returned
	// [sample 4 sample 5]
	// [sample 6 sample 7]
}
