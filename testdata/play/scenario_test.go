package play

// What a loader does with a scenario, as the page and the pictures show it: the
// run of the real engine in fake time, and what follows from its Timings.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"dataloader"
)

// A scenario is what a loader has to do in a picture, and the data set that it
// loads. Times are numbers of units. What is on or off is 1 or 0.
type scenario struct {
	workers, prefetch, unordered int
	batches                      int
	load, longer                 int // loading a batch, and how much longer an odd one takes
	slow, takes                  int // the batch that is slow, or -1, and its time
	train                        int // in the body
	// the batch that fails, that after which the loop breaks, or -1
	fails, leaves int
	deaf          int    // whether Get does not look at its context
	at            int    // where the line stands
	unit          string // ms, s, m or h
}

// newScenario is that of timeline.svg: loading a batch takes 40 or 50 ms, but
// batch 2 takes 190 ms.
func newScenario() *scenario {
	return &scenario{
		workers: 3, prefetch: 2, batches: 12, load: 40, longer: 10, slow: 2, takes: 190, train: 10,
		fails: -1, leaves: -1, at: 135, unit: "ms",
	}
}

func (s *scenario) Len() int { return s.batches }

func (s *scenario) Get(ctx context.Context, k int) (int, error) {
	units := s.load + k%2*s.longer
	if k == s.slow {
		units = s.takes
	}
	// No two batches are ready at the same moment.
	loaded := time.After(s.units(units) + time.Duration(1+k*k))
	if s.deaf == 1 {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-loaded:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if k == s.fails {
		return 0, errors.New("bad sample")
	}
	return k, nil
}

// body is what the loop does with a batch or an error. It always takes a
// moment. Otherwise it depended on the scheduler whether a worker, whose batch
// has just ended the loop, begins another one.
func (s *scenario) body(err error) {
	takes := time.Nanosecond
	if err == nil {
		takes = max(takes, s.units(s.train))
	}
	time.Sleep(takes)
}

// units is n units of time.
func (s *scenario) units(n int) time.Duration {
	return time.Duration(n) * unitOf[s.unit]
}

// unitOf is how long a unit of a scenario is.
var unitOf = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour,
}

// time says how many units d has.
func (s *scenario) time(d time.Duration) string {
	return fmt.Sprintf("%d %s", d/s.units(1), s.unit)
}

// window is the most batches in flight. Without workers no task is sent.
func (s *scenario) window() int { return min(s.workers*s.prefetch, s.batches) }

// A journey is the way of a batch: when it was sent to the workers, when a
// worker began and ended to load it, when it went from the queue of results
// into the cache, when the loop had it, and when the body was done with it.
type journey struct {
	batch, worker                                 int
	sent, start, done, cached, received, returned time.Duration
}

// never is the time of what did not happen.
const never = time.Duration(math.MaxInt64)

// A played is what happened in a scenario.
type played struct {
	*scenario
	journeys []journey     // as the loop had the batches, then those that it never had
	left     time.Duration // when the loop broke, or never
	end      time.Duration // when the range returned
	waiting  time.Duration // of the loop, for batches
	stats    *dataloader.Stats
	err      error // of New, or why the bubble did not end
}

// run runs the engine in fake time. What it knows of the batches that the loop
// had is what their Timings say. It does not call t.Fatal.
func (s *scenario) run(t *testing.T) *played {
	p := &played{scenario: s, left: never, stats: new(dataloader.Stats)}
	all := make([]journey, s.batches)
	for k := range all {
		all[k] = journey{k, -1, never, never, never, never, never, never}
	}
	var timings []dataloader.Timing
	opts := dataloader.Options{Workers: s.workers, Unordered: s.unordered == 1}
	if s.workers > 0 {
		opts.Prefetch = s.prefetch
	}
	opts.Trace = func(tm dataloader.Timing) {
		p.stats.Observe(tm)
		p.waiting += tm.Wait
		timings = append(timings, tm)
	}
	var begin time.Time
	data := dataloader.Func(s.batches, func(ctx context.Context, k int) (int, error) {
		all[k].worker, all[k].start = dataloader.Worker(ctx), time.Since(begin)
		defer func() { all[k].done = time.Since(begin) }()
		return s.Get(ctx, k)
	})
	loader, err := dataloader.New(data, dataloader.List[int], opts)
	if err != nil {
		p.err = err
		return p
	}
	loop := func(t *testing.T) {
		begin = time.Now()
		for _, err := range loader.Epoch(t.Context(), 0) {
			s.body(err)
			k := timings[len(timings)-1].Batch
			all[k].returned = time.Since(begin)
			if k == s.leaves {
				p.left = all[k].returned
				break
			}
		}
		p.end = time.Since(begin)
	}
	// If the engine has been broken, the page must say so, and go on.
	leak := panicOf(func() {
		synctest.Test(t, func(t *testing.T) { p.err = panicOf(func() { loop(t) }) })
	})
	if p.err = cmp.Or(p.err, leak); p.err == nil {
		p.err = panicOf(func() { p.follow(begin, timings, all) })
	}
	return p
}

// follow sets the journeys, from the timings and from what all says of the
// batches that have none.
func (p *played) follow(begin time.Time, timings []dataloader.Timing, all []journey) {
	had := make([]bool, len(all))
	for _, tm := range timings {
		j := &all[tm.Batch]
		j.worker, j.sent, j.start = tm.Worker, tm.Sent.Sub(begin), tm.Start.Sub(begin)
		j.done, j.received = tm.Done.Sub(begin), tm.Received.Sub(begin)
		p.journeys = append(p.journeys, *j)
		had[tm.Batch] = true
	}
	for k, j := range all {
		if had[k] {
			continue
		}
		before := k - p.window() // this many were handed over when batch k was sent
		if before < 0 {
			j.sent = 0
		} else if before < len(timings) {
			j.sent = timings[before].Received.Sub(begin)
		}
		p.journeys = append(p.journeys, j)
	}
	for i := range p.journeys {
		// The loop takes results from the queue until it has the one whose turn
		// it is. The others go into the cache.
		j := &p.journeys[i]
		j.cached = j.received
		isTurn := func(tm dataloader.Timing) bool { return tm.Done.Sub(begin) >= j.done }
		if turn := slices.IndexFunc(timings, isTurn); turn >= 0 && turn < i && p.unordered == 0 {
			asked := timings[turn].Received.Add(-timings[turn].Wait)
			j.cached = max(j.done, asked.Sub(begin))
		}
	}
}

// took says how long the run took.
func (p *played) took() string {
	text := p.time(p.end) + ", " + p.time(p.waiting) + " of them waiting for batches"
	if p.left < never {
		text += ", left at " + p.time(p.left)
	}
	return text
}

// A lane is a row of a timeline.
type lane struct {
	name, note string
	bars       []bar
}

// A bar is a batch in a lane or, with the class dashed, a worker without a task
// between two others, because the window is full. The class is its colour.
type bar struct {
	batch    int
	class    string
	from, to time.Duration
}

// sign is one character for a bar.
func (b bar) sign() string {
	if b.class == "dashed" {
		return "-"
	}
	return strconv.FormatInt(int64(b.batch), 36)
}

// lanes are the rows of a run: the workers, the queue of results, the cache,
// with at least the given number of slots, and the loop body.
func (p *played) lanes(slots int) []lane {
	// Which worker takes which of the first tasks depends on the scheduler, so
	// the workers are numbered in the order of their first batches.
	var workers []int
	loader := "worker #"
	if p.workers == 0 {
		loader = "load"
	}
	return slices.Concat(
		p.rows(loader, "load", 0,
			func(j journey) (from, to time.Duration) { return j.start, j.done },
			func(j journey, _ []lane) int {
				if !slices.Contains(workers, j.worker) {
					workers = append(workers, j.worker)
				}
				return slices.Index(workers, j.worker)
			}),
		p.rows("queue", "wait", 0,
			func(j journey) (from, to time.Duration) { return j.done, j.cached },
			func(j journey, lanes []lane) int {
				isFree := func(l lane) bool { return l.bars[len(l.bars)-1].to <= j.done+p.blink() }
				if free := slices.IndexFunc(lanes, isFree); free >= 0 {
					return free
				}
				return len(lanes)
			}),
		p.rows("ready[#]", "wait", slots,
			func(j journey) (from, to time.Duration) { return j.cached, j.received },
			func(j journey, _ []lane) int { return j.batch % (p.window() + 1) }),
		p.rows("train", "train", 1,
			func(j journey) (from, to time.Duration) { return j.received, j.returned },
			func(journey, []lane) int { return 0 }))
}

// rows draws where the batches are in the time that span returns, each in the
// lane that laneOf chooses. # in the name is the number of the lane.
func (p *played) rows(
	name, class string, least int,
	span func(journey) (from, to time.Duration), laneOf func(j journey, lanes []lane) int,
) []lane {
	lanes := make([]lane, least)
	sorted := slices.SortedStableFunc(slices.Values(p.journeys), func(a, b journey) int {
		x, _ := span(a)
		y, _ := span(b)
		return cmp.Compare(x, y)
	})
	for _, j := range sorted {
		from, to := span(j)
		to = min(to, p.end)
		had := from < never // a failed batch that the loop had takes no time, but is shown
		if to-from <= p.blink() && !(class == "train" && j.batch == p.fails && had) {
			continue
		}
		i := laneOf(j, lanes)
		for len(lanes) <= i {
			lanes = append(lanes, lane{})
		}
		bars := lanes[i].bars
		if n := len(bars); name == "worker #" && n > 0 && bars[n-1].to+p.blink() < from {
			bars = append(bars, bar{-1, "dashed", bars[n-1].to, from})
		}
		lanes[i].bars = append(bars, bar{j.batch, p.class(class, j), from, to})
	}
	for i := range lanes {
		lanes[i].name = strings.Replace(name, "#", strconv.Itoa(i), 1)
	}
	return lanes
}

// class is the class of a batch's bar.
func (p *played) class(class string, j journey) string {
	switch j.batch {
	case p.fails:
		class = "bad"
	case p.slow:
		class = map[string]string{"load": "slow", "wait": "slow-wait", "train": "slow"}[class]
	}
	if j.received == never {
		class += " dropped"
	}
	return class
}

// blink is a time that no picture shows.
func (p *played) blink() time.Duration { return p.end / 400 }

// A moment is a time in which nothing happens, and its note says what the
// engine's counters are, and where the batches are. The line stands in the one
// that is marked.
type moment struct {
	from, to time.Duration
	note     string
	marked   bool
}

// moments are the times between the events of a run.
func (p *played) moments() (all []moment) {
	events := []time.Duration{0, p.end}
	for _, j := range p.journeys {
		events = append(events, j.sent, j.start, j.done, j.cached, j.received, j.returned)
	}
	slices.Sort(events)
	from, at := time.Duration(0), p.units(p.at)+p.units(1)/2
	for _, to := range events {
		if to-from > p.blink() && to <= p.end {
			all = append(all, moment{from, to, p.note(from, to), from <= at && at < to})
			from = to
		}
	}
	return all
}

// note says where the batches are just before the end of a moment.
func (p *played) note(from, to time.Duration) string {
	recv, send := 0, 0
	places := []string{"in the body", "in the cache", "in the queue", "in workers", "not begun"}
	if p.workers == 0 {
		places[3] = "in the loop"
	}
	where := make([]string, len(places))
	for _, j := range p.journeys {
		happened := func(x time.Duration) bool { return x < to }
		events := []time.Duration{j.returned, j.received, j.cached, j.done, j.start, j.sent}
		last := slices.IndexFunc(events, happened)
		if last >= 0 {
			send++
		}
		if happened(j.received) {
			recv++
		}
		if last > 0 { // places[last-1] is where that event brought the batch
			where[last-1] += strconv.Itoa(j.batch) + " "
		}
	}
	note := fmt.Sprintf("%d to %s: recv = %d, send = %d", from/p.units(1), p.time(to), recv, send)
	if p.left < to {
		note = fmt.Sprintf("%d to %s, the loop has been left", from/p.units(1), p.time(to))
	}
	sep := "; "
	for i, batches := range where {
		if batches != "" {
			note, sep = note+sep+batches+places[i], ", "
		}
	}
	return note
}

// ticks are the places of some numbers on the axis of time.
func (p *played) ticks() (all []time.Duration) {
	step := p.units(1)
	for i := 0; p.end/step > 8; i++ {
		step = step * []time.Duration{4, 5, 4}[i%3] / 2 // 1, 2, 5, 10, 20, …
	}
	for x := time.Duration(0); x <= p.end; x += step {
		all = append(all, x)
	}
	return all
}

// panicOf is what f panics with, as an error, or nil.
func panicOf(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic %v", r)
		}
	}()
	f()
	return nil
}
