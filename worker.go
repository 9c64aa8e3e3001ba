package dataloader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync"
)

// An engine turns tasks into results, in goroutines, and hands the results to its caller, in the order of the tasks or
// as they arrive. A task and its result are one value of type S. It travels in a slot, and slots are reused:
//
//	             tasks              results
//	caller ─────────────> worker, … ─────────────> caller ──> loop body
//	  ^                                             │ ^           │
//	  │                                             v │           │
//	  │                                           cache[k % window]
//	  └─────────────── an empty slot, refilled ───────────────────┘
//
// Tasks are numbered k = 0, 1, …. Two counters run through the numbers: send is the next task to be sent, recv the
// next result to be handed to the loop body. A result goes into the cache, and leaves the cache when recv gets there.
// At every moment
//
//	recv <= send <= recv+window
//
// and each k with recv <= k < send is in exactly one place: in the queue tasks, in a worker, in the queue results, or in
// the cache. So at most window slots are in flight, and each queue has room for window slots. Therefore:
//
//   - No send ever blocks. A worker needs no select between its send and a signal to stop.
//   - The engine stops by closing tasks and waiting for the workers.
//   - Memory is bounded, even if task 0 never returns.
//   - Two tasks in flight never share an element of the cache.
//
// Out of order there is no cache, and send - recv is only the number in flight. The bound is the same. The caller owns
// send, recv and the cache. A slot belongs to the goroutine that has received it.
//
// PyTorch calls the counters _send_idx and _rcvd_idx and the cache _task_info. It gives each worker a queue of its
// own, because its workers are processes. Here the workers share one queue, so that the first free worker takes the
// next task, and a slow task delays the loading of no other.
type engine[S any] struct {
	workers int  // if 0, the caller loads
	window  int  // the most tasks in flight, at least 1
	ordered bool // whether results are handed over in the order of the tasks

	// task fills the zeroed *S with the next task, or reports that there is none. The caller's goroutine calls it.
	task func(*S) bool

	// newLoad returns the function in which worker w turns a task into its result. The function leaves a result in
	// *S even if user code in it panics or calls runtime.Goexit.
	newLoad func(ctx context.Context, w int) func(*S)

	// read is nil for loaders. For streams it runs in a goroutine of its own, between the caller and the queue tasks.
	read func(ctx context.Context, permits <-chan *slot[S], tasks chan<- *slot[S])
}

// A slot carries task k, and then its result.
type slot[S any] struct {
	k    int
	task S
}

// run calls yield with one result after the other, until there are no more or yield returns false. If ctx ends, the
// remaining tasks come back without having been loaded, so yield must look at ctx first. When run returns, also by a
// panic in yield, all its goroutines have ended.
func (e *engine[S]) run(ctx context.Context, yield func(*S) bool) {
	ctx, cancel := context.WithCancel(ctx)
	if e.workers == 0 && e.read == nil {
		defer cancel()
		e.inline(ctx, yield)
		return
	}
	tasks, results := make(chan *slot[S], e.window), make(chan *slot[S], e.window)
	sends := tasks // where the caller sends
	var running sync.WaitGroup
	defer running.Wait() // last: wait for the goroutines
	for w := range e.workers {
		running.Go(func() { e.work(ctx, w, &running, tasks, results) })
	}
	if e.read != nil {
		sends = make(chan *slot[S], e.window)
		if e.workers == 0 {
			tasks = results // what the reader sends is the result
		}
		running.Go(func() { e.read(labelled(ctx, "reader"), sends, tasks) })
	}
	defer close(sends) // second: the workers drain the queue, without loading what is in it
	defer cancel()     // first
	e.loop(sends, results, yield)
}

// inline does the work of run without goroutines. It is the specification of run: with workers, the same results arrive
// sooner.
func (e *engine[S]) inline(ctx context.Context, yield func(*S) bool) {
	load := e.newLoad(ctx, -1)
	var task, empty S
	for ; e.task(&task); task = empty {
		if ctx.Err() == nil {
			load(&task)
		}
		if !yield(&task) {
			return
		}
	}
}

// loop sends tasks and hands over results.
func (e *engine[S]) loop(tasks chan<- *slot[S], results <-chan *slot[S], yield func(*S) bool) {
	send, recv := 0, 0
	more := true // whether there are more tasks
	refill := func(s *slot[S]) {
		more = more && e.task(&s.task)
		if more {
			s.k = send
			send++
			tasks <- s
		}
	}
	for more && send < e.window {
		refill(new(slot[S]))
	}
	cache := make([]*slot[S], e.window)
	spare := new(slot[S]) // the slot that the loop body had before
	for recv < send {
		s := cache[recv%e.window]
		for s == nil {
			r := <-results
			if !e.ordered {
				s = r
				break
			}
			cache[r.k%e.window] = r
			s = cache[recv%e.window]
		}
		cache[recv%e.window] = nil
		recv++
		refill(spare) // before yield, so that window tasks are in flight while the loop body runs
		if !yield(&s.task) {
			return
		}
		*s = slot[S]{}
		spare = s
	}
}

// work is the life of worker w. If user code ends the goroutine, by runtime.Goexit, another goroutine continues.
func (e *engine[S]) work(ctx context.Context, w int, running *sync.WaitGroup, tasks <-chan *slot[S], results chan<- *slot[S]) {
	drained := false
	defer func() {
		if !drained {
			running.Go(func() { e.work(ctx, w, running, tasks, results) })
		}
	}()
	load := e.newLoad(labelled(ctx, "worker "+strconv.Itoa(w)), w)
	one := func(s *slot[S]) {
		defer func() { results <- s }() // also after Goexit: the caller would wait for a lost slot for ever
		if ctx.Err() == nil {
			load(&s.task)
		}
	}
	for s := range tasks {
		one(s)
	}
	drained = true
}

// labelled sets the profiler label "dataloader" of the goroutine, and of the context that goes with it. Other labels
// of ctx stay.
func labelled(ctx context.Context, name string) context.Context {
	ctx = pprof.WithLabels(ctx, pprof.Labels("dataloader", name))
	pprof.SetGoroutineLabels(ctx)
	return ctx
}

// A PanicError is a panic in user code, as an error: the panic's value, and the stack where it happened.
type PanicError struct {
	Value any
	Stack []byte
}

// Error returns the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the value of the panic if it is an error, and nil otherwise.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// rescue turns a panic into a *PanicError in *err. It is deferred around calls of user code:
//
//	err = errGoexit
//	defer rescue(&err)
//	err = userCode()
//
// After a normal return err is the result of userCode, after a panic a *PanicError. If userCode calls runtime.Goexit, no
// line after the call runs, recover returns nil, and errGoexit stands. Set it first if a function that was deferred earlier
// reads err.
func rescue(err *error) {
	if r := recover(); r != nil {
		*err = &PanicError{r, debug.Stack()}
	}
}

// errGoexit is the error of user code that ended its goroutine, as t.FailNow does.
var errGoexit = errors.New("runtime.Goexit was called")

// try calls f and returns a panic in f as an error.
func try[T any](f func() (T, error)) (value T, err error) {
	defer rescue(&err)
	return f()
}

// Second reading: streams. Map is the engine with a reader and workers, Prefetch the engine with a reader alone.

// Map applies f to every item. With workers > 0, f runs in that many goroutines, and one more goroutine reads the
// source, at most 8×workers items ahead of the loop. The results keep the order of the source: each is handed over when it
// and all before it are ready. With 0 workers f runs when the loop asks for the item. workers must not be negative.
//
// An error of f fails the item, and so does a panic. The error should name the item; Map adds only its position. A resume
// does not call f again for items before the cursor. Rand(ctx) in f has the seed of WithSeed, and depends on the item's
// epoch and position. A Map of a Map draws numbers of its own. Two Maps side by side, as in Zip or Chain, draw the same
// numbers at the same position, and so do two ranks if a stage after Shard counts anew; let f use Rand(WithSeed(ctx, n))
// with an n of its own there. torchdata: Mapper, ParallelMapper.
func Map[T, U any](src Stream[T], workers int, f func(context.Context, T) (U, error)) Stream[U] {
	panicIf(src == nil, "Map: the stream is nil")
	panicIf(f == nil, "Map: f is nil")
	panicIf(workers < 0 || workers > math.MaxInt32/8, "Map: workers is %d, must be 0 to %d", workers, math.MaxInt32/8)
	return streamOf(func(ctx context.Context, from Cursor, yield func(Item[U]) bool) error {
		seed := scopeOf(ctx).seed
		newApply := func(ctx context.Context, w int) func(*mapping[T, U]) {
			ctx, s := withScope(ctx, w, seed, spot{})
			return func(m *mapping[T, U]) { m.apply(ctx, s, f) }
		}
		// A Map before this one must not draw the same numbers. Outside f the context has a seed, but Rand panics.
		ctx, between := withScope(ctx, -1, hash(seed, mapSalt), spot{})
		between.outside = true
		if workers > 0 {
			e := engine[mapping[T, U]]{workers: workers, window: 8 * workers, newLoad: newApply}
			return readAhead(ctx, src, from, e, func(m *mapping[T, U]) bool { return yield(m.out) })
		}
		apply := newApply(ctx, -1)
		var m mapping[T, U]
		for item, err := range src(ctx, from) {
			if err != nil {
				return err
			}
			m.in = item
			apply(&m)
			if !yield(m.out) {
				return nil
			}
		}
		return nil
	})
}

// mapSalt tells the seed of a Map from that of its source.
const mapSalt = 0x6d6170

// A mapping is an item on its way through an engine.
type mapping[T, U any] struct {
	in  Item[T]
	out Item[U]
	// last says that the source has no more items, and err why it cannot be continued: nil at the end of the epoch.
	last bool
	err  error
}

// apply sets m.out to f of m.in, or to a failed item.
func (m *mapping[T, U]) apply(ctx context.Context, s *scope, f func(context.Context, T) (U, error)) {
	m.out = Item[U]{Err: m.in.Err, Next: m.in.Next}
	if m.last || m.in.Err != nil {
		return
	}
	m.out.Err = errGoexit
	defer func() {
		m.in.Value = *new(T) // f has used it
		if m.out.Err != nil {
			m.out = failedItem[U]("Map", m.in.Next, m.out.Err)
		}
	}()
	defer rescue(&m.out.Err)
	s.move(spot{epoch: uint64(m.in.Next.Epoch), pos: uint64(m.in.Next.Pos)})
	m.out.Value, m.out.Err = f(ctx, m.in.Value)
}

// Prefetch reads up to n items ahead of the loop, in a goroutine that lives as long as the range. It is a queue with one
// writer, which waits only if the queue is full, and one reader, which waits only if it is empty. Order and delivery are
// guaranteed, and no item comes twice. n must be at least 1. torchdata: Prefetcher.
func (s Stream[T]) Prefetch(n int) Stream[T] {
	panicIf(s == nil, "Prefetch: the stream is nil")
	panicIf(n < 1 || n > maxPrefetch, "Prefetch: n is %d, must be 1 to %d", n, maxPrefetch)
	return streamOf(func(ctx context.Context, from Cursor, yield func(Item[T]) bool) error {
		e := engine[mapping[T, T]]{window: n}
		return readAhead(ctx, s, from, e, func(m *mapping[T, T]) bool { return yield(m.in) })
	})
}

// maxPrefetch bounds the items that Prefetch reads ahead, for which it has slots from the beginning.
const maxPrefetch = 1 << 24

// readAhead runs e with a reader, and yields what leaves the engine. Only one goroutine can read src, so the reader stands
// between the caller and the workers. What the caller sends are permits, which are empty slots. The reader fills a slot
// with the next item and sends it on as a task:
//
//	             permits            tasks              results
//	caller ─────────────> reader ─────────> worker, … ─────────> caller ──> loop body
//
// So the reader is at most window items ahead, and the caller never waits for src while a result is ready. Without workers
// the reader sends to results: that is Prefetch.
func readAhead[T, U any](ctx context.Context, src Stream[T], from Cursor, e engine[mapping[T, U]], yield func(*mapping[T, U]) bool) (err error) {
	e.ordered = true
	e.task = func(*mapping[T, U]) bool { return true } // a permit for the reader
	e.read = func(ctx context.Context, permits <-chan *slot[mapping[T, U]], tasks chan<- *slot[mapping[T, U]]) {
		readItems(ctx, src, from, permits, tasks)
	}
	e.run(ctx, func(m *mapping[T, U]) bool {
		if m.last { // The end counts, whatever has become of ctx meanwhile.
			err = m.err
			return false
		}
		return yield(m)
	})
	return err
}

// readItems sends a task for each item of src, and a last one for the end of src, also if src panics or ends its goroutine.
// When ctx has ended, the next item is not sent: the cause of ctx is the end, unless src has come to its own.
func readItems[T, U any](ctx context.Context, src Stream[T], from Cursor, permits <-chan *slot[mapping[T, U]], tasks chan<- *slot[mapping[T, U]]) {
	defer close(tasks)
	s := <-permits
	var end error     // what src ends with
	died := errGoexit // unless src returns
	defer func() {
		if died != nil {
			end = fmt.Errorf("dataloader: the stream: %w", died)
		}
		if s != nil {
			s.task.last, s.task.err = true, end
			tasks <- s
		}
	}()
	defer rescue(&died)
	for item, err := range src(ctx, from) {
		end = err
		if err == nil && ctx.Err() != nil { // src does not look at ctx
			end = context.Cause(ctx)
		}
		if end != nil {
			break
		}
		s.task.in = item
		tasks <- s
		s = <-permits
		if s == nil { // permits is closed: the caller has left the loop
			break
		}
	}
	died = nil
}
