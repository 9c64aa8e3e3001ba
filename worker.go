package dataloader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"sync"
)

// By which goroutine is a batch made, and how? The first half of this file
// answers for loaders:
//
//	engine        which goroutine: queues between the loop and its workers, and
//	              the order of what comes back
//	maker, task   how: a maker takes a task, chooses indices, fetches samples
//	              and collates them
//	scope         what a context knows of the sample that is being loaded, for
//	              Rand and Worker
//	PanicError    how a panic in user code becomes an error
//
// The second half runs the functions of streams in the same engine: Map and
// Prefetch.

// An engine passes tasks to workers and hands over their results, in the order
// of the tasks or as the results arrive. A task and its result lie in one slot
// of an array that belongs to the engine's user. The queues carry the numbers
// of slots:
//
//	          tasks               results
//	loop ─────────────> workers ─────────────> loop ─────> body
//	 ^                                         │  ^          │
//	 │                                         v  │          │
//	 │                                     reorder cache     │
//	 └───────────── the slot that is free again ─────────────┘
//
// The loop is the goroutine of the range; the body is the user's lines in it.
// Whoever receives the number of a slot owns the slot. While the number lies in
// a queue, nobody touches the slot. All other slots are the loop's. No lock is
// needed: what is written before a send is seen after its receive. There are
// window + 1 slots: at most window for tasks in flight, and one for the result
// in the body.
//
// Tasks are numbered k = 0, 1, …. Two counters run through the numbers: send is
// the next task to be sent, recv the next result to be handed to the body. At
// every moment
//
//	recv <= send <= recv+window
//
// and each k with recv <= k < send is in exactly one place: in the queue tasks,
// in a worker, in the queue results, or in the reorder cache, which holds the
// results that have come before their turn. (Out of order recv only counts the
// results, and send - recv tasks are in these places. For streams the places of
// the reader come before the queue tasks; see readAhead.) Each queue has a
// capacity of window. Therefore:
//
//   - No send ever blocks. A worker needs no select between its send and a
//     signal to stop.
//   - To stop, the engine cancels the workers' context, closes the queue that
//     it sends to, and waits.
//   - Memory is bounded, even if task 0 never returns.
//
// In order, task k lies in slot k % (window+1): tasks 0 to window take slots 0
// to window, and each later task the slot that the body had last, which is that
// of result k-window-1: with window 6, task 7 takes the slot of result 0. So
// the next result to hand over is in slot recv % (window+1), and the reorder
// cache is one flag for each slot: ready. Out of order the loop takes the slots
// as they come, and ready is not used. The bound is the same.
//
// The fields of an engine are set before its goroutines start, and only read
// afterwards. The variables of loop belong to the loop, those of startWorker to
// its worker.
//
// PyTorch calls the counters _send_idx and _rcvd_idx and the cache _task_info.
// It gives each worker a queue of its own. Here the workers share one queue, so
// that the first free worker takes the next task, and a slow task delays the
// loading of no other until the window is full.
type engine struct {
	workers int    // if 0, the loop does the work
	window  int    // the most tasks in flight, at least 1
	ordered bool   // whether results are handed over in the order of their tasks
	seed    uint64 // of Rand in a worker

	// nextTask puts the next task into a slot, or reports that there is none,
	// also if it is asked again. It runs in the loop.
	nextTask func(slot int) bool

	// newWork returns the function with which a worker turns the task in a slot
	// into its result. Each worker has one for itself, so the function may keep
	// memory. It leaves a result in the slot even if user code panics or calls
	// runtime.Goexit.
	newWork func(w worker) func(slot int)

	// read is nil for loaders. For streams it runs in a goroutine of its own,
	// between the loop and the queue tasks, and what the loop sends are permits
	// for it; see readAhead.
	read func(ctx context.Context, permits <-chan int, tasks chan<- int)
}

// run calls yield with the slot of one result after the other, until there are
// no more or yield returns false. If ctx ends, the remaining tasks come back
// without having been worked on, and their slots hold no result. So yield looks
// at ctx first. When run returns, also by a panic in yield, all its goroutines
// have ended.
//
// At the end the deferred calls run from the last to the first:
//
//	cancel          the context of the workers ends, so that each Get may return
//	close(permits)  the workers drain the queue without working, and end
//	running.Wait    run waits for all its goroutines
func (e *engine) run(ctx context.Context, yield func(slot int) bool) {
	ctx, cancel := context.WithCancel(ctx)
	if e.workers == 0 && e.read == nil {
		defer cancel()
		e.inline(ctx, yield)
		return
	}
	tasks, results := make(chan int, e.window), make(chan int, e.window)
	permits := tasks // what the loop sends: without a reader, the tasks
	var running sync.WaitGroup
	defer running.Wait()
	for number := range e.workers {
		e.startWorker(ctx, number, &running, tasks, results)
	}
	if e.read != nil {
		permits = make(chan int, e.window)
		if e.workers == 0 {
			tasks = results // what the reader sends is the result
		}
		running.Go(func() { e.read(labelled(ctx, "reader"), permits, tasks) })
	}
	defer close(permits)
	defer cancel()
	e.loop(permits, results, yield)
}

// inline does the work of run without goroutines. It is the specification of
// run: with workers, the same results come sooner. When ctx has ended it still
// calls yield, because only yield can tell the loop why there are no more
// results.
func (e *engine) inline(ctx context.Context, yield func(slot int) bool) {
	work := e.newWork(newWorker(ctx, -1, e.seed))
	for e.nextTask(0) {
		if ctx.Err() == nil {
			work(0)
		}
		if !yield(0) {
			return
		}
	}
}

// loop sends tasks, or permits for a reader, and hands over results.
func (e *engine) loop(permits chan<- int, results <-chan int, yield func(slot int) bool) {
	send, recv := 0, 0
	sendTask := func(slot int) {
		if e.nextTask(slot) {
			send++
			permits <- slot
		}
	}
	for slot := range e.window {
		sendTask(slot)
	}
	ready := make([]bool, e.window+1) // the reorder cache
	spare := e.window                 // the slot for the next task; later the body's last one
	for recv < send {
		slot := recv % (e.window + 1)
		if e.ordered {
			for !ready[slot] {
				ready[<-results] = true
			}
			ready[slot] = false
		} else {
			slot = <-results
		}
		recv++
		sendTask(spare) // before yield, so that window tasks are in flight while the body runs
		if !yield(slot) {
			return
		}
		spare = slot
	}
}

// startWorker starts the goroutine of a worker. If user code ends the goroutine
// by runtime.Goexit, only deferred functions run, and working is still true.
// The deferred function then sends the slot on, since the loop would wait for
// it for ever, and starts another goroutine in the place of this one.
func (e *engine) startWorker(
	ctx context.Context, number int, running *sync.WaitGroup,
	tasks <-chan int, results chan<- int,
) {
	running.Go(func() {
		slot, working := 0, false
		defer func() {
			if working {
				results <- slot
				e.startWorker(ctx, number, running, tasks, results)
			}
		}()
		ctx := labelled(ctx, "worker "+strconv.Itoa(number))
		work := e.newWork(newWorker(ctx, number, e.seed))
		for slot = range tasks {
			if ctx.Err() == nil {
				working = true
				work(slot)
				working = false
			}
			results <- slot
		}
	})
}

// labelled sets the profiler label "dataloader" of the goroutine, and of the
// context that goes with it. Other labels of ctx stay.
func labelled(ctx context.Context, name string) context.Context {
	ctx = pprof.WithLabels(ctx, pprof.Labels("dataloader", name))
	pprof.SetGoroutineLabels(ctx)
	return ctx
}

// A worker is what one goroutine passes to user code: a context, and the scope
// in it.
type worker struct {
	ctx   context.Context // with the scope, and the end of the loop
	scope *scope
}

// newWorker makes a worker with the given number. -1 stands for the loop.
func newWorker(ctx context.Context, number int, seed uint64) worker {
	s := &scope{worker: number, seed: seed}
	return worker{withScope(ctx, s), s}
}

// A maker makes batches in one worker, with slices that it reuses from batch to
// batch.
type maker struct {
	worker
	pass *pass // for which the batches are made

	step      int            // of the batch
	positions []int          // of the batch in the epoch
	indices   []int          // of its samples, as the order has them
	spots     []spot         // one for each index, for Rand
	index     int            // that of the sample for which user code runs, or -1
	loaded    []int          // the indices of the samples that have not failed
	failed    []*SampleError // the samples that could not be fetched, for OnError
}

// A task is one batch on its way through the engine: first what to make, then
// what was made.
type task[B any] struct {
	step   int            // which batch of the pass; set by the loop
	batch  B              // first the memory to build the batch in, or zero; then the batch
	failed []*SampleError // the samples that could not be fetched, for OnError
	err    error          // a *SampleError if the batch failed
	timing Timing         // its times are zero without Trace
}

// A builder makes the batch of the indices that a maker has chosen, in the
// memory of dst. It is that of fetchAndCollate, or calls the load of
// NewBatchFunc. A builder is for one maker.
type builder[B any] func(m *maker, dst B) (B, error)

// makeBatch turns a task into its batch, or into the error of the batch.
func makeBatch[B any](m *maker, t *task[B], build builder[B]) {
	t.timing.Worker, t.timing.Start = m.scope.worker, m.pass.traceTime()
	m.step, m.index = t.step, -1
	m.loaded = m.loaded[:0]
	m.failed = nil // a new slice: the task before has the old one
	// If user code ends the goroutine, only deferred functions run, and this is
	// the error.
	t.err = errGoexit
	defer func() {
		if t.err != nil {
			t.err = m.sampleError(t.err)
		}
		t.failed = m.failed
		t.timing.Samples, t.timing.Done = len(m.loaded), m.pass.traceTime()
	}()
	defer rescue(&t.err)
	err := m.chooseIndices()
	if err == nil {
		t.batch, err = build(m, t.batch)
	}
	t.err = err
}

// sampleError returns an error of the batch that m makes, or of the sample for
// which user code was called.
func (m *maker) sampleError(err error) *SampleError {
	return m.pass.sampleError(m.step, m.index, err)
}

// chooseIndices asks the order for the indices of the batch.
func (m *maker) chooseIndices() error {
	p := m.pass
	if trace.IsEnabled() {
		trace.Logf(m.ctx, "batch", "epoch %d, batch %d", p.epoch, p.firstBatch+m.step)
	}
	m.indices, m.spots = m.indices[:0], m.spots[:0]
	m.positions = p.deal.positions(m.positions[:0], m.step)
	for _, pos := range m.positions {
		inEpoch := pos % p.deal.n // PadTail begins again with the first positions
		m.indices = p.indicesAt(m.indices, inEpoch)
		for part, i := range m.indices[len(m.spots):] { // those of this position
			if i < 0 || i >= p.plan.samples {
				return fmt.Errorf("the sampler: %w", refuseIndex(i, p.plan.samples))
			}
			m.spots = append(m.spots, spot{uint64(p.epoch), uint64(pos), uint64(part)})
		}
	}
	if len(m.indices) == 0 {
		return errors.New("the sampler gave no index")
	}
	return nil
}

// fetchAndCollate returns the builder of New: it fetches the samples one by
// one, and collates them. If OnError may drop samples, a batch of which none is
// left is not collated.
func fetchAndCollate[T, B any](data Dataset[T], collate Collate[T, B]) builder[B] {
	var samples []T // from batch to batch
	return func(m *maker, dst B) (batch B, err error) {
		samples, err = fetch(m, data, samples[:0])
		defer clear(samples) // the next batch needs only the memory
		if err != nil || len(samples) == 0 {
			return dst, err
		}
		defer trace.StartRegion(m.ctx, "collate").End()
		batch, err = collate(dst, samples)
		if err != nil {
			first := m.loaded[:min(16, len(samples))]
			err = fmt.Errorf("collating %d samples %v: %w", len(samples), first, err)
		}
		return batch, err
	}
}

// fetch appends the samples of the batch. A sample that fails fails the batch,
// or is put aside for OnError. One try serves all samples up to the next that
// fails, because a try takes as long as a small Get.
func fetch[T any](m *maker, data Dataset[T], samples []T) ([]T, error) {
	defer trace.StartRegion(m.ctx, "fetch").End()
	fetchUntilError := func() error {
		for j := len(m.loaded) + len(m.failed); j < len(m.indices); j++ {
			if err := m.ctx.Err(); err != nil {
				return err
			}
			m.index = m.indices[j]
			m.scope.setSpot(m.spots[j])
			sample, err := data.Get(m.ctx, m.index)
			if err != nil {
				return err
			}
			samples = append(samples, sample)
			m.loaded = append(m.loaded, m.index)
		}
		return nil
	}
	for err := try(fetchUntilError); err != nil; err = try(fetchUntilError) {
		if m.pass.plan.opts.OnError == nil {
			return samples, err
		}
		m.failed = append(m.failed, m.sampleError(err))
	}
	m.index = -1
	return samples, nil
}

// A scope is what a context knows about the call that it is passed to: which
// worker runs it, and for which sample. Each worker has one scope and moves it
// from sample to sample, so that a call costs no allocation. A scope is not
// safe for concurrent use, and therefore the generator of Rand is not. It is
// never copied: rand would draw from the pcg of the other one.
type scope struct {
	worker int
	seed   uint64
	spot   spot
	idle   bool // whether no sample is being loaded, so that Rand panics
	seeded bool // whether pcg has been seeded for spot
	pcg    rand.PCG
	rand   *rand.Rand // draws from pcg; nil until the first call of Rand
}

// A spot identifies a sample in a run: the epoch, the position in the epoch's
// order and, where a position is a whole batch, the number of the sample in the
// batch.
type spot struct{ epoch, pos, part uint64 }

// scopeKey is the key of a scope in a context.
type scopeKey struct{}

// scopeOf returns the scope of ctx, or an idle one.
func scopeOf(ctx context.Context) *scope {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return s
	}
	return &scope{worker: -1, idle: true}
}

// withScope returns a context with a scope.
func withScope(ctx context.Context, s *scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// setSpot makes s the scope of another sample.
func (s *scope) setSpot(to spot) { s.spot, s.seeded = to, false }

// A PanicError is a panic in user code, as an error: the panic's value, and the
// stack where it happened.
type PanicError struct {
	Value any
	Stack []byte
	place string // as in " (file.go:12)", or ""
}

// Error returns the value and where it happened, in one line: "panic: boom
// (file.go:12)". That is the first frame in the user's code. The frames of this
// package and of the standard library are passed over, with -trimpath only the
// runtime's.
func (e *PanicError) Error() string {
	return fmt.Sprintf("panic: %s%s", strings.ReplaceAll(fmt.Sprint(e.Value), "\n", "; "), e.place)
}

// Unwrap returns the value of the panic if it is an error, and nil otherwise.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// rescue turns a panic into a *PanicError in *err. It is deferred around calls
// of user code:
//
//	err = errGoexit
//	defer rescue(&err)
//	err = userCode()
//
// After a normal return err is the result of userCode, after a panic a
// *PanicError. If userCode calls runtime.Goexit, no line after the call runs,
// recover returns nil, and err is still errGoexit. The first line is only
// needed where a deferred function reads err, as makeBatch's does; otherwise
// nobody sees err after a Goexit.
func rescue(err *error) {
	if r := recover(); r != nil {
		*err = &PanicError{r, debug.Stack(), placeOfPanic()}
	}
}

// placeOfPanic returns the place of a panic that has just been recovered: the
// first frame of the user's code. The frames are, the innermost first, those of
//
//   - the recovery
//   - the panic
//   - the standard library and this package, if the user's code has called them
//     (Rand, for example)
//   - the user's code
//
// If this package itself panics, as OrderFunc does, that is the user's loop.
func placeOfPanic() string {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	self, _ := frames.Next()
	here := strings.TrimSuffix(self.Function, "placeOfPanic") // the path of this package, and a dot
	library := ""                                             // its folder; "" before the panic
	for f, more := frames.Next(); more; f, more = frames.Next() {
		own := strings.HasPrefix(f.Function, here)
		switch {
		case f.Function == "runtime.gopanic":
			library = strings.TrimSuffix(f.File, "runtime/panic.go")
			if library == "" { // with -trimpath
				library = "runtime/"
			}
		case library == "" || strings.HasPrefix(f.File, library):
		case !own || strings.HasSuffix(f.File, "_test.go"):
			return fmt.Sprintf(" (%s:%d)", path.Base(f.File), f.Line)
		}
	}
	return ""
}

// errGoexit is the error of user code that ended its goroutine, as t.FailNow
// does.
var errGoexit = errors.New("runtime.Goexit was called")

// try calls f and returns a panic in f as an error.
func try(f func() error) (err error) {
	defer rescue(&err)
	return f()
}

// Second reading: streams. Map is the engine with a reader and workers,
// Prefetch the engine with a reader alone.

// Map applies f to every item. With workers > 0, f runs in that many
// goroutines, and one more goroutine reads the source, at most 8×workers items
// ahead of the loop. The results keep the order of the source: each is handed
// over when it and all before it are ready. With 0 workers f runs when the loop
// asks for the item. workers must not be negative. For items of many megabytes
// use StreamOf a loader, whose window you choose: Workers × Prefetch (the
// recipe Example_rowGroups).
//
// An error of f fails the item, and so does a panic. The error should name the
// item; Map adds only its position. A resume does not call f again for items
// before the cursor.
//
// Rand(ctx) in f has the seed of WithSeed, and depends on the item's epoch and
// position. Its numbers differ from those of a loader at the source.
//
//   - Maps in a chain draw different numbers. A Map that is added behind
//     another one changes the other one's numbers.
//   - Maps side by side, as in Zip or Chain, draw the same numbers at the same
//     position. Let f use Rand(WithSeed(ctx, n)) there, with an n of its own.
//   - Ranks draw different numbers. Straight after Stream.Shard, item k of the
//     source has the same numbers on any number of ranks. In StreamOf, in Tar,
//     and where a stage such as Shuffle counts anew what Shard has dealt, the
//     positions of all ranks are alike, so the numbers depend on the rank, too;
//     rank 0 draws those of the only rank. Only behind a NewStream or FromSeq
//     that deals out by itself ranks draw the same: use WithSeed there.
//
// torchdata: Mapper, ParallelMapper.
func Map[T, U any](src Stream[T], workers int, f func(context.Context, T) (U, error)) Stream[U] {
	src.mustExist("Map")
	panicIf(f == nil, "Map: f is nil")
	panicIf(workers < 0 || workers > math.MaxInt32/8,
		"Map: workers is %d, must be 0 to %d", workers, math.MaxInt32/8)
	part := mapPart - src.ranks.index()
	return streamOf(src.ranks, func(
		ctx context.Context, from Cursor, yield func(Item[U]) bool,
	) error {
		seed := scopeOf(ctx).seed
		// A Map before this one must not draw the same numbers. Outside f the
		// context has a seed, but Rand panics.
		between := withScope(ctx, &scope{worker: -1, seed: hash(seed, mapSalt), idle: true})
		if workers > 0 {
			window := 8 * workers
			items := make([]Item[T], window+1)   // by slot
			results := make([]Item[U], window+1) // by slot
			e := engine{
				workers: workers,
				window:  window,
				seed:    seed,
				newWork: func(w worker) func(int) {
					return func(slot int) { apply(w, part, f, &items[slot], &results[slot]) }
				},
			}
			return readAhead(between, src, from, e, items, func(slot int) bool {
				return yield(takeItem(&results[slot]))
			})
		}
		w := newWorker(between, -1, seed)
		var result Item[U]
		for item, err := range src.items(between, from) {
			if err != nil {
				return err
			}
			apply(w, part, f, &item, &result)
			if !yield(takeItem(&result)) {
				return nil
			}
		}
		return nil
	})
}

// mapSalt tells the seed of a Map from that of its source, and mapPart its
// random numbers from those of a loader, whose seed may be the same. Ranks that
// count alike have other parts: mapPart minus the index in ranks.
const (
	mapSalt = 0x6d6170
	mapPart = math.MaxUint64 - 1
)

// apply sets *result to f of *item, or to a failed item. *item keeps only its
// Err.
func apply[T, U any](
	w worker, part uint64, f func(context.Context, T) (U, error), item *Item[T], result *Item[U],
) {
	value, next := item.Value, item.Next
	*result = Item[U]{Err: item.Err, Next: next}
	*item = Item[T]{Err: item.Err}
	if item.Err != nil {
		return
	}
	result.Err = errGoexit // which stands if f ends the goroutine
	defer func() {
		if result.Err != nil {
			*result = failedItem[U]("Map", next, result.Err)
		}
	}()
	defer rescue(&result.Err)
	w.scope.setSpot(spot{uint64(next.Epoch), uint64(next.Pos), part})
	result.Value, result.Err = f(w.ctx, value)
}

// takeItem returns the item in a slot and empties the slot, which must not keep
// the item while the body has it.
func takeItem[T any](slot *Item[T]) Item[T] {
	item := *slot
	*slot = Item[T]{}
	return item
}

// Prefetch reads up to n items ahead of the loop, in a goroutine that lives as
// long as the range. It is a queue with one writer, which waits only if the
// queue is full, and one reader, which waits only if it is empty. Order and
// delivery are guaranteed, and no item comes twice. n must be at least 1.
// torchdata: Prefetcher.
func (s Stream[T]) Prefetch(n int) Stream[T] {
	s.mustExist("Stream.Prefetch")
	panicIf(n < 1 || n > maxPrefetch, "Stream.Prefetch: n is %d, must be 1 to %d", n, maxPrefetch)
	return streamOf(s.ranks, func(
		ctx context.Context, from Cursor, yield func(Item[T]) bool,
	) error {
		items := make([]Item[T], n+1) // by slot
		return readAhead(ctx, s, from, engine{window: n}, items, func(slot int) bool {
			return yield(takeItem(&items[slot]))
		})
	})
}

// maxPrefetch bounds the items that Prefetch reads ahead, for which it has
// slots from the beginning.
const maxPrefetch = 1 << 24

// readAhead runs e with a reader, which puts the items of src into slots, and
// yields the slots that leave the engine. Only one goroutine can read src, so
// the reader stands between the loop and the workers. What the loop sends are
// permits: the numbers of empty slots. The reader puts the next item into the
// slot, and sends the number on as a task:
//
//	        permits            tasks              results
//	loop ─────────────> reader ─────────> workers ─────────> loop ─────> body
//
// So the reader is at most window items ahead, and the loop never waits for src
// while a result is ready. Without workers the reader sends to results: that is
// Prefetch.
func readAhead[T any](
	ctx context.Context, src Stream[T], from Cursor, e engine, items []Item[T],
	yield func(slot int) bool,
) (err error) {
	e.ordered = true
	e.nextTask = func(int) bool { return true } // a permit for the reader
	e.read = func(ctx context.Context, permits <-chan int, tasks chan<- int) {
		fillSlots(ctx, src, from, items, permits, tasks)
	}
	e.run(ctx, func(slot int) bool {
		if end, ok := items[slot].Err.(endOfSource); ok {
			err = end.error // which counts, whatever has become of ctx meanwhile
			return false
		}
		return yield(slot)
	})
	return err
}

// An endOfSource is the Err of the slot after the last item. Like every failed
// item it passes the workers unchanged. It holds why the source cannot be
// continued, and nil at the end of the epoch.
type endOfSource struct{ error }

// fillSlots puts the items of src into slots, and an endOfSource after the
// last, also if src panics or ends its goroutine. When ctx has ended, the next
// item is not sent: the cause of ctx is the end, unless src has come to its
// own.
func fillSlots[T any](
	ctx context.Context, src Stream[T], from Cursor, items []Item[T],
	permits <-chan int, tasks chan<- int,
) {
	defer close(tasks)
	slot, more := <-permits
	var end error     // what src ends with
	died := errGoexit // which stands if src ends the goroutine
	defer func() {
		if died != nil {
			end = fmt.Errorf("dataloader: the stream: %w", died)
		}
		if more {
			items[slot] = Item[T]{Err: endOfSource{end}}
			tasks <- slot
		}
	}()
	defer rescue(&died)
	for item, err := range src.items(ctx, from) {
		end = err
		if err == nil && ctx.Err() != nil { // src does not look at ctx
			end = context.Cause(ctx)
		}
		if end != nil {
			break
		}
		items[slot] = item
		tasks <- slot
		if slot, more = <-permits; !more { // the loop has been left
			break
		}
	}
	died = nil
}
