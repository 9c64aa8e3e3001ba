package dataloader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync"
)

// An engine loads tasks in goroutines and hands the results to its caller in order. A task and its result
// are one value of type S, which goes round in a slot:
//
//	              tasks                        results
//	caller ─── [reader] ───> worker, … ─────────────────> caller ──> loop body
//	  ^                                                      │ ^
//	  │                                                   cache[k % window], if not k == recv
//	  └──────────────── an empty slot, refilled ─────────────┘
//
// Two counters run through the numbers k of the tasks, in order: send is the next to be sent to the
// workers, recv the next to be received by the loop body, and
//
//	recv <= send <= recv+window
//
// Every k in recv … send-1 is in exactly one place: queued in tasks, in a worker, queued in results, or in the
// cache. So neither queue ever holds more than window slots, which is its capacity, and no send ever
// blocks. That is why no worker has to select between its send and a signal to stop, why stopping is to
// close tasks and wait, and why memory is bounded even if task 0 never comes. It is also why k % window is a
// place in the cache that no other task wants.
//
// PyTorch's names are _send_idx, _rcvd_idx and _task_info. It has a queue for each worker, because its
// workers are processes; here they share one, so that whoever is free takes the next task.
type engine[S any] struct {
	workers int // 0: everything in the calling goroutine
	window  int
	ordered bool // false: hand over whatever is ready. The bound is then on what was sent and not received.

	// next makes *S, which is zero, the next task, or reports that there is none. Called by the caller.
	next func(*S) bool
	// read, if not nil, needs workers, and runs in a goroutine of its own between the caller and the tasks, for
	// what only one goroutine can read. What the caller sends are then permits: read takes one, which is nil
	// when there are no more, makes a task of it, and puts that. So the caller never waits for the source, and a
	// result that is ready never waits for the source's next item.
	read func(ctx context.Context, take func() *S, put func())
	// load returns the function in which the given worker turns a task into its result. That function must
	// leave a result in *S even if user code in it panics or calls runtime.Goexit.
	load func(ctx context.Context, worker int) func(*S)
}

type slot[S any] struct {
	k    int
	task S
}

// run calls yield with one result after the other, until there is none or yield returns false. A task that
// was not begun when ctx ended is handed over as it was sent: yield must look at ctx first. Whatever yield
// does, when run is over so are all workers.
func (e *engine[S]) run(ctx context.Context, yield func(*S) bool) {
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait() // third
	if e.workers == 0 {
		defer cancel()
		e.inline(ctx, yield)
		return
	}
	tasks, results := make(chan *slot[S], e.window), make(chan *slot[S], e.window)
	permits := tasks
	if e.read != nil {
		permits = make(chan *slot[S], e.window)
		workers.Go(func() { e.reader(ctx, permits, tasks) })
	}
	defer close(permits) // second: the workers empty the queue, without running what is in it
	defer cancel()       // first

	send, recv, more := 0, 0, true
	refill := func(s *slot[S]) {
		if more = more && e.next(&s.task); more {
			s.k = send
			send++
			permits <- s
		}
	}
	for more && send < e.window {
		refill(new(slot[S]))
	}
	for w := range min(e.workers, send) {
		workers.Go(func() { e.work(ctx, w, &workers, tasks, results) })
	}
	cache := make([]*slot[S], e.window)
	spare := new(slot[S])
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
		refill(spare) // before s is handed over, so that window tasks are under way while the caller has it
		if !yield(&s.task) {
			return
		}
		spare, *s = s, slot[S]{}
	}
}

// reader is the life of the goroutine that reads.
func (e *engine[S]) reader(ctx context.Context, permits <-chan *slot[S], tasks chan<- *slot[S]) {
	defer close(tasks)
	ctx = labelled(ctx, "reader")
	var s *slot[S]
	take := func() *S {
		if s = <-permits; s == nil { // the caller has gone
			return nil
		}
		if ctx.Err() != nil {
			tasks <- s // the caller may be waiting for this one
			return nil
		}
		return &s.task
	}
	e.read(ctx, take, func() { tasks <- s })
}

// inline is run without goroutines: the specification of it.
func (e *engine[S]) inline(ctx context.Context, yield func(*S) bool) {
	load := e.load(ctx, -1)
	var task, empty S
	for ; e.next(&task); task = empty {
		if ctx.Err() == nil {
			load(&task)
		}
		if !yield(&task) {
			return
		}
	}
}

// work is a worker's life. If user code ends its goroutine, another goroutine goes on in its place.
func (e *engine[S]) work(ctx context.Context, w int, workers *sync.WaitGroup, tasks <-chan *slot[S], results chan<- *slot[S]) {
	over := false
	defer func() {
		if !over {
			workers.Go(func() { e.work(ctx, w, workers, tasks, results) })
		}
	}()
	load := e.load(labelled(ctx, "worker "+strconv.Itoa(w)), w)
	one := func(s *slot[S]) {
		defer func() { results <- s }() // whatever happens: a slot that is lost would be waited for
		if ctx.Err() == nil {
			load(&s.task)
		}
	}
	for s := range tasks {
		one(s)
	}
	over = true
}

// labelled labels the goroutine, and the context that goes with it, for profiles. Labels that ctx has stay; those that the
// caller's goroutine has without it do not.
func labelled(ctx context.Context, name string) context.Context {
	ctx = pprof.WithLabels(ctx, pprof.Labels("dataloader", name))
	pprof.SetGoroutineLabels(ctx)
	return ctx
}

// errGoexit is the error of a task whose user code called runtime.Goexit in a worker, as t.FailNow does.
var errGoexit = errors.New("runtime.Goexit was called")

// caught makes an error of what recover has returned in a deferred function of a call that did not come
// to its end: nil means runtime.Goexit, else it is a PanicError, which dataloader.go has.
func caught(recovered any) error {
	if recovered == nil {
		return errGoexit
	}
	return &PanicError{recovered, debug.Stack()}
}

// try calls f, and makes an error of its panic.
func try[T any](f func() (T, error)) (value T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = caught(r)
		}
	}()
	return f()
}

// apart runs f in a goroutine of its own and waits for it, so that a runtime.Goexit in it ends no other.
func apart(f func()) {
	var g sync.WaitGroup
	g.Go(f)
	g.Wait()
}

// A scope is what a context knows of the call that it is passed to: who makes it, and for which sample.
// Each worker has one and moves it from sample to sample, so that a call costs no allocation.
type scope struct {
	worker int
	seed   uint64
	spot   spot
	seeded bool // whether pcg has been set for spot
	pcg    rand.PCG
	rand   *rand.Rand // draws from pcg; nil until the first call of Rand
}

// A spot is the place of a sample in all epochs: the position in the epoch's order and, where a position
// is a whole batch, the place in the batch.
type spot struct{ epoch, pos, part uint64 }

type scopeKey struct{}

// scopeOf returns the scope of ctx, or an empty one.
func scopeOf(ctx context.Context) *scope {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return s
	}
	return &scope{worker: -1}
}

// withScope returns a context for the given worker, seed and spot, and the scope in it, to be moved.
func withScope(ctx context.Context, worker int, seed uint64, at spot) (context.Context, *scope) {
	s := &scope{worker: worker, seed: seed, spot: at}
	return context.WithValue(ctx, scopeKey{}, s), s
}

// move makes the scope that of another sample.
func (s *scope) move(at spot) { s.spot, s.seeded = at, false }

// withSpot returns ctx with the sample's place replaced.
func withSpot(ctx context.Context, at spot) context.Context {
	s := scopeOf(ctx)
	ctx, _ = withScope(ctx, s.worker, s.seed, at)
	return ctx
}

// rewinder returns a function that sets the generator of ctx back to where it is now.
func rewinder(ctx context.Context) func() {
	s := scopeOf(ctx)
	pcg, seeded := s.pcg, s.seeded
	return func() { s.pcg, s.seeded = pcg, seeded }
}

// Rand returns the random generator of the sample that is being fetched or transformed, for augmentation.
// It depends on the seed, the epoch and the sample's position in the epoch alone, so the same numbers come
// for any number of workers, in or out of order, before and after a resume, on any number of ranks. In a
// GetBatch there is one for the batch. It is good until the function that was given ctx returns, and not
// safe for concurrent use. A context that no loader made has the generator of its WithSeed, anew at each call.
//
// PyTorch: the generators that a worker_init_fn has to seed, which depend on the number of workers.
func Rand(ctx context.Context) *rand.Rand {
	s := scopeOf(ctx)
	if s.rand == nil {
		s.rand = rand.New(&s.pcg)
	}
	if !s.seeded {
		s.pcg.Seed(hash(s.seed, s.spot.epoch), hash(s.spot.pos, s.spot.part))
		s.seeded = true
	}
	return s.rand
}

// WithSeed returns a context in which Rand has another seed, at the same sample: for a second, independent
// generator within a Get, and as the seed of a Stream's functions. A loader uses Options.Seed instead.
func WithSeed(ctx context.Context, seed uint64) context.Context {
	s := scopeOf(ctx)
	ctx, _ = withScope(ctx, s.worker, seed, s.spot)
	return ctx
}

// Worker returns the number of the worker that runs the call ctx was passed to, 0 … Workers-1, or -1 where
// there is none: in the caller's goroutine. PyTorch: get_worker_info().id.
func Worker(ctx context.Context) int { return scopeOf(ctx).worker }

// Map applies f to every item. With workers, f runs in that many goroutines and the source is read in one more, at
// most 8×workers items ahead of the one handed over; the items come in order, each as soon as it is there. With 0
// workers f runs when the item is asked for. The error of f is the item's, and so is a panic. f is not called again for
// items before the cursor of a resume. Its random numbers come from Rand(ctx), with the seed of WithSeed, by the
// epoch and the place of the item. torchdata: Mapper, ParallelMapper.
func Map[T, U any](src Stream[T], workers int, f func(context.Context, T) (U, error)) Stream[U] {
	bad := cmp.Or(badNil("Map", src), badIf(f == nil, "Map: f is nil"),
		badIf(workers < 0 || workers > math.MaxInt32/8, "Map: workers is %d, must be 0 to %d", workers, math.MaxInt32/8))
	return streamOf(bad, func(ctx context.Context, from Cursor, yield func(Item[U], error) bool) error {
		mapper := func(ctx context.Context, w int) func(*mapping[T, U]) {
			ctx, s := withScope(ctx, w, scopeOf(ctx).seed, spot{})
			return func(m *mapping[T, U]) { m.apply(ctx, s, f) }
		}
		ended := false
		deliver := func(m *mapping[T, U]) bool {
			ended = ctx.Err() != nil
			return !ended && !m.end && yield(Item[U]{m.out, m.in.Next}, m.err)
		}
		if workers == 0 {
			apply := mapper(ctx, -1)
			var m mapping[T, U]
			for item, err := range src(ctx, from) {
				m.in, m.err = item, err
				if apply(&m); !deliver(&m) {
					break
				}
			}
		} else {
			e := engine[mapping[T, U]]{
				workers: workers,
				window:  8 * workers,
				ordered: true,
				next:    func(*mapping[T, U]) bool { return true },
				read: func(ctx context.Context, take func() *mapping[T, U], put func()) {
					readMappings(src.guarded(ctx, from), take, put)
				},
				load: mapper,
			}
			e.run(ctx, deliver)
		}
		if ended {
			return context.Cause(ctx)
		}
		return nil
	})
}

// A mapping is an item on its way through Map.
type mapping[T, U any] struct {
	in  Item[T]
	out U
	err error // of the item, and then of f
	end bool  // there are no more items
}

// readMappings makes a mapping of each pair of seq, and one of its end: also when seq ends its goroutine.
func readMappings[T, U any](seq iter.Seq2[Item[T], error], take func() *mapping[T, U], put func()) {
	m, over := take(), false
	if m == nil {
		return
	}
	defer func() {
		if !over && m != nil {
			m.err = errGoexit
			put()
		}
	}()
	for item, err := range seq {
		m.in, m.err = item, err
		put()
		if m = take(); m == nil {
			break
		}
	}
	over = true
	if m != nil {
		m.end = true
		put()
	}
}

// apply calls f.
func (m *mapping[T, U]) apply(ctx context.Context, s *scope, f func(context.Context, T) (U, error)) {
	if m.err != nil || m.end {
		m.out = *new(U)
		return
	}
	over := false
	defer func() {
		if !over {
			m.err = caught(recover())
		}
		if m.err != nil {
			m.out, m.err = *new(U), failed("Map", m.in.Next, m.err)
		}
	}()
	s.move(spot{epoch: uint64(m.in.Next.Epoch), pos: uint64(m.in.Next.Pos)})
	m.out, m.err = f(ctx, m.in.Value)
	over = true
}

// Prefetch reads up to n items ahead, in a goroutine of its own that lives as long as the range. It is a queue
// between exactly two ends, of which neither waits while there is room or an item: delivery and order are
// guaranteed, and nothing comes twice. n must be at least 1. torchdata: Prefetcher.
func (s Stream[T]) Prefetch(n int) Stream[T] {
	type pair struct {
		item Item[T]
		err  error
	}
	bad := cmp.Or(badNil("Prefetch", s), badIf(n < 1, "Prefetch: n is %d, must be at least 1", n))
	return streamOf(bad, func(ctx context.Context, from Cursor, yield func(Item[T], error) bool) error {
		reading, cancel := context.WithCancel(ctx)
		// The pairs are in a ring, of which the channel counts those that are ready: n-1 in the channel, one that waits
		// to be sent, and one in the hands of the loop. A channel of pairs would not take values of more than 64 kB.
		ring := make([]pair, n+1)
		ahead := make(chan struct{}, n-1)
		var reader sync.WaitGroup
		defer reader.Wait()
		defer cancel()
		complete := false // written before ahead is closed, and read after
		reader.Go(func() {
			defer close(ahead)
			write := 0
			for item, err := range s.guarded(labelled(reading, "prefetch"), from) {
				ring[write] = pair{item, err}
				write = (write + 1) % len(ring)
				select {
				case ahead <- struct{}{}:
				case <-reading.Done():
					return
				}
			}
			complete = true
		})
		read := 0
		for range ahead {
			if ctx.Err() != nil {
				break
			}
			p := ring[read]
			ring[read] = pair{}
			read = (read + 1) % len(ring)
			if !yield(p.item, p.err) || fatal(p.item, p.err) {
				return nil
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !complete {
			return fmt.Errorf("dataloader: Prefetch: epoch %d: the stream: %w", from.Epoch, errGoexit)
		}
		return nil
	})
}
