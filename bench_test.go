package dataloader

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Every figure that is a claim is a ratio: each line below times its own code and the baseline in turn, round by round
// in the same process, and reports the median. So it means the same on a machine that is busy with other things.

// against times run, which does n units of work, against a baseline that does as many. It reports the time of a unit
// and, as x-<name of the baseline>, how many times as fast as the baseline run is. The amounts are reported per second.
func against(b *testing.B, name, unit string, n int, baseline string, base, run func(), amounts ...amount) {
	b.Run(name, func(b *testing.B) {
		theirs, mine, allocs := rounds(b, base, run)
		ratios := make([]float64, len(mine))
		for i := range mine {
			ratios[i] = theirs[i] / mine[i]
		}
		for _, a := range amounts {
			b.ReportMetric(a.n/median(mine)*1e9, a.unit+"/s")
		}
		b.ReportMetric(median(mine)/float64(n), "ns/"+unit)
		b.ReportMetric(median(ratios), "x-"+baseline)
		b.ReportMetric(allocs/float64(n), "allocs/"+unit)
	})
}

// rounds runs base and run in turn. It returns how long each round of both took, in ns, and how often run allocates.
func rounds(b *testing.B, base, run func()) (theirs, mine []float64, allocs float64) {
	base()
	run()
	var before, after runtime.MemStats
	for b.Loop() {
		t0 := time.Now()
		base()
		t1 := time.Now()
		runtime.ReadMemStats(&before)
		t2 := time.Now()
		run()
		t3 := time.Now()
		runtime.ReadMemStats(&after)
		allocs += float64(after.Mallocs - before.Mallocs)
		theirs = append(theirs, float64(t1.Sub(t0)))
		mine = append(mine, float64(t3.Sub(t2)))
	}
	b.ReportMetric(0, "ns/op") // that of a round, of both
	return theirs, mine, allocs / float64(len(mine))
}

// An amount is how much one round does, in some unit.
type amount struct {
	n    float64
	unit string
}

func median(x []float64) float64 {
	slices.Sort(x)
	return (x[len(x)/2] + x[(len(x)-1)/2]) / 2
}

// epochOf returns a function that goes through one epoch of a loader and gives each batch back.
func epochOf[T, B any](b *testing.B, data Dataset[T], collate Collate[T, B], opts Options) func() {
	loader, err := New(data, collate, opts)
	if err != nil {
		b.Fatal(err)
	}
	return func() {
		for batch, err := range loader.Epoch(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
			loader.Recycle(batch)
		}
	}
}

// pool returns a function that calls f(k) for 0 <= k < n in unordered workers that share a queue, at most 4 ahead. That is
// the least that any loader of this shape has to do.
func pool(n, workers int, f func(k int)) func() {
	return func() {
		tasks, results := make(chan int, 4), make(chan int, 4)
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				for k := range tasks {
					f(k)
					results <- k
				}
			})
		}
		send := 0
		for recv := range n {
			for send < min(n, recv+4) {
				tasks <- send
				send++
			}
			<-results
		}
		close(tasks)
		all.Wait()
	}
}

// futures returns a function that does the same in order, in the way that comes to mind first: a goroutine for each task,
// and a channel of channels.
func futures(n, workers int, f func(k int)) func() {
	return func() {
		queue := make(chan chan int, 2*workers)
		go func() {
			defer close(queue)
			for k := range n {
				future := make(chan int, 1)
				queue <- future
				go func() {
					f(k)
					future <- k
				}()
			}
		}()
		for future := range queue {
			<-future
		}
	}
}

// BenchmarkTrivial is the loader's own cost: batches of one sample that costs nothing.
func BenchmarkTrivial(b *testing.B) {
	const n = 50000
	base := pool(n, 2, func(int) {})
	line := func(name string, run func()) { against(b, name, "batch", n, "pool", base, run) }
	line("unordered-pool", base)
	line("channel-of-futures", futures(n, 2, func(int) {}))
	for workers := range 3 {
		line(fmt.Sprintf("workers=%d", workers), epochOf(b, numbers(n), List[int], Options{Workers: workers}))
	}
	line("workers=2/unordered", epochOf(b, numbers(n), List[int], Options{Workers: 2, Unordered: true}))
}

// BenchmarkThroughput loads batches that take 1 ms of waiting, as for a request, and batches that take 200 µs of computing,
// with 1 to 16 workers. With -update it draws the picture of the README.
func BenchmarkThroughput(b *testing.B) {
	pic := svg{height: 340}
	const left, right, bottom, top, most = 50, 620, 300, 20, 16
	x := func(workers int) int { return left + (right-left)*workers/most }
	y := func(speed float64) float64 { return bottom - (bottom-top)*speed/most }
	for i := 0; i <= most; i += 2 {
		pic.add(`<line class="grid" x1="%d" y1="%.0f" x2="%d" y2="%.0f"/>`, left, y(float64(i)), right, y(float64(i)))
		pic.add(`<text class="time" x="%d" y="%.0f">%d×</text>`, left-16, y(float64(i))+4, i)
		pic.add(`<text class="time" x="%d" y="%d">%d</text>`, x(i), bottom+18, i)
	}
	pic.add(`<text class="time" x="%d" y="%d">workers; against a plain loop, on %d CPUs</text>`, (left+right)/2, bottom+36, runtime.GOMAXPROCS(0))
	pic.add(`<line class="ideal" x1="%d" y1="%.0f" x2="%d" y2="%.0f"/>`, left, y(0), right, y(most))
	pic.add(`<text x="%d" y="%.0f">ideal</text>`, x(12)-44, y(12)-4)
	for _, kind := range []struct {
		name, class string
		n           int
		load        func(k int)
	}{
		{"waiting", "line", 64, func(int) { time.Sleep(time.Millisecond) }},
		{"computing", "line slow", 300, burn(200 * time.Microsecond)},
	} {
		data := Func(kind.n, func(_ context.Context, k int) (int, error) {
			kind.load(k)
			return k, nil
		})
		points, last := fmt.Sprintf("%d,%.0f", x(0), y(0)), 0.0
		for _, workers := range []int{1, 2, 4, 8, 16} {
			b.Run(fmt.Sprintf("%s/workers=%d", kind.name, workers), func(b *testing.B) {
				loop, mine, _ := rounds(b, func() {
					for k := range kind.n {
						kind.load(k)
					}
				}, epochOf(b, data, List[int], Options{Workers: workers}))
				last = median(loop) / median(mine)
				b.ReportMetric(last, "x-loop")
				b.ReportMetric(float64(kind.n)/median(mine)*1e9, "batches/s")
			})
			points += fmt.Sprintf(" %d,%.0f", x(workers), y(last))
		}
		pic.add(`<polyline class="%s" points="%s"/>`, kind.class, points)
		pic.add(`<text x="%d" y="%.0f">%s: %.1f×</text>`, right+8, y(last)+4, kind.name, last)
	}
	if *update {
		goldenFile(b, "throughput.svg", pic.bytes("How many times as fast as a plain loop, against the number of workers"))
	}
}

// goldenFile compares data with a file of testdata, which -update rewrites.
func goldenFile(t testing.TB, name string, data []byte) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		must(0, os.WriteFile(name, data, 0o644))
	}
	if want, err := os.ReadFile(name); err != nil || !bytes.Equal(data, want) {
		t.Errorf("%s is not what it was; go test -update writes it", name)
	}
}

// An svg is a picture that is written from top to bottom. Its colours have a light and a dark form.
type svg struct {
	body   strings.Builder
	height int
}

const svgWidth = 760

func (p *svg) add(format string, args ...any) { fmt.Fprintf(&p.body, format+"\n", args...) }

// panel draws lanes, with the time below them. A bar is what is the same in several columns.
func (p *svg) panel(title string, lanes []string) {
	const left, column, row, name = 74, 9, 20, 10
	p.height += 24
	p.add(`<text class="title" x="8" y="%d">%s</text>`, p.height, title)
	p.height += 8
	for x := 0; x <= len(lanes[0])-name; x += 10 {
		p.add(`<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`, left+x*column, p.height, left+x*column, p.height+row*len(lanes)+4)
		p.add(`<text class="time" x="%d" y="%d">%d</text>`, left+x*column, p.height+row*len(lanes)+16, 10*x)
	}
	for _, lane := range lanes {
		where, columns := strings.TrimSpace(lane[:name]), lane[name:]
		p.add(`<text x="8" y="%d">%s</text>`, p.height+14, where)
		for from := 0; from < len(columns); {
			bar := columns[from:]
			bar = bar[:len(bar)-len(strings.TrimLeft(bar, bar[:1]))]
			if bar[0] != '.' {
				p.bar(where, bar, left+from*column, p.height, len(bar)*column-1, row)
			}
			from += len(bar)
		}
		p.height += row
	}
	p.height += 24
}

// bar draws a batch as a bar: its number, as often as it has columns, says which one.
func (p *svg) bar(where, columns string, x, y, width, height int) {
	kind := map[string]string{"worker": "load", "queue": "wait", "cache": "wait", "caller": "train"}[strings.Fields(where)[0]]
	batch := must(strconv.ParseInt(columns[:1], 12, 0))
	if batch == 2 {
		kind += " slow"
	}
	if batch > 9 && width < 12 {
		kind += " small"
	}
	p.add(`<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="2"/>`, kind, x, y+2, width, height-4)
	p.add(`<text class="batch %s" x="%d.5" y="%d">%d</text>`, kind, x+width/2, y+14, batch)
}

// bytes ends the picture.
func (p *svg) bytes(title string) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">
<title>%s</title>
<style>
svg { background: #ffffff; }
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.time, .batch { text-anchor: middle; font-size: 10px; }
.batch.small { font-size: 7px; }
.time { fill: #59636e; }
.grid { stroke: #d1d9e0; }
.load { fill: #2a78d6; }
.wait { fill: #b9d3f2; }
.train { fill: #5d6670; }
.slow { fill: #c2571a; }
.wait.slow { fill: #f0c3a5; }
.ideal { stroke: #59636e; stroke-dasharray: 4 4; fill: none; }
.line { stroke: #2a78d6; stroke-width: 2; fill: none; }
.line.slow { stroke: #c2571a; }
.batch.load, .batch.train, .batch.slow { fill: #ffffff; }
.batch.wait { fill: #1f2328; }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; }
text { fill: #e6edf3; }
.time { fill: #9198a1; }
.grid { stroke: #30363d; }
.wait { fill: #1c3d66; }
.train { fill: #8b949e; }
.wait.slow { fill: #5c2e12; }
.ideal { stroke: #9198a1; }
.line { stroke: #58a6ff; }
.line.slow { stroke: #f0883e; }
.batch.wait { fill: #e6edf3; }
.batch.train { fill: #0d1117; }
}
</style>
%s</svg>
`, svgWidth, p.height, title, p.body.String())
}

// BenchmarkTrace is what Options.Trace adds to a batch: the difference to the same loader without Trace.
func BenchmarkTrace(b *testing.B) {
	const n = 50000
	for _, workers := range []int{0, 2} {
		for name, observe := range map[string]func(Timing){"nothing": func(Timing) {}, "Stats": new(Stats).Observe} {
			b.Run(fmt.Sprintf("workers=%d/%s", workers, name), func(b *testing.B) {
				theirs, mine, _ := rounds(b, epochOf(b, numbers(n), List[int], Options{Workers: workers}),
					epochOf(b, numbers(n), List[int], Options{Workers: workers, Trace: observe}))
				b.ReportMetric((median(mine)-median(theirs))/n, "ns-more/batch")
			})
		}
	}
}

// sink keeps results from being optimized away.
var sink atomic.Uint64

// burn keeps a processor busy for about d.
func burn(d time.Duration) func(int) {
	spin := func(times int) (x uint64) {
		for i := range times {
			x = mix(x + uint64(i))
		}
		return x
	}
	const probe = 1 << 20
	best := time.Duration(1 << 62)
	for range 5 {
		start := time.Now()
		sink.Store(spin(probe))
		best = min(best, time.Since(start))
	}
	times := int(probe * float64(d) / float64(best))
	return func(int) { sink.Store(spin(times)) }
}

// BenchmarkWork is how much of two processors the loader keeps busy: batches that take 20 and 200 µs to load, against the
// loop that loads them itself.
func BenchmarkWork(b *testing.B) {
	for _, d := range []time.Duration{20 * time.Microsecond, 200 * time.Microsecond} {
		n := int(40 * time.Millisecond / d)
		work := burn(d)
		data := Func(n, func(_ context.Context, i int) (int, error) {
			work(i)
			return i, nil
		})
		loop := func() {
			for i := range n {
				work(i)
			}
		}
		line := func(name string, run func()) {
			against(b, fmt.Sprintf("%v/%s", d, name), "batch", n, "loop", loop, run)
		}
		line("unordered-pool", pool(n, 2, work))
		line("channel-of-futures", futures(n, 2, work))
		for workers := range 3 {
			line(fmt.Sprintf("workers=%d", workers), epochOf(b, data, List[int], Options{Workers: workers}))
		}
	}
}

// BenchmarkRows is a whole epoch of MNIST's size, 60,000 rows of 784 numbers, shuffled, in batches of 64: against a
// hand-written loop that copies the rows into one buffer, and against two goroutines that copy half of the rows each. The
// limit is the copy of the same bytes in one piece.
func BenchmarkRows(b *testing.B) {
	const n, width, size = 60000, 784, 64
	data := make([]float32, n*width)
	for i := range data {
		data[i] = float32(i)
	}
	rows, err := Rows(Tensor[float32]{Data: data, Shape: []int{n, width}})
	if err != nil {
		b.Fatal(err)
	}
	order := Random(n, 0)
	byHand := func(from, to int) {
		at, buffer := order.Order(0), make([]float32, size*width)
		for start := from; start < to; start += size {
			for j := range min(size, to-start) {
				i := at(start + j)
				copy(buffer[j*width:(j+1)*width], data[i*width:(i+1)*width])
			}
		}
	}
	loop := func() { byHand(0, n) }
	goroutines := func() {
		var both sync.WaitGroup
		both.Go(func() { byHand(0, n/2) })
		both.Go(func() { byHand(n/2, n) })
		both.Wait()
	}
	epoch := func(workers int) func() {
		return epochOf(b, rows, Stack[float32], Options{BatchSize: size, Shuffle: true, Workers: workers})
	}
	piece := make([]float32, size*width)
	against(b, "limit:copy", "row", n, "loop", loop, func() {
		for start := 0; start < n; start += size {
			copy(piece, data[start*width:])
		}
	})
	against(b, "workers=0", "row", n, "loop", loop, epoch(0))
	against(b, "workers=2", "row", n, "two-goroutines", goroutines, epoch(2))
	against(b, "workers=2/against-loop", "row", n, "loop", loop, epoch(2))
}

// BenchmarkRandom is the cost of an index of a shuffle: from a table, and without one. The baseline is the
// permutation of the same length that rand.Perm makes, with its table of 8 bytes an index.
func BenchmarkRandom(b *testing.B) {
	const n = 1281167 // ImageNet
	perm := func() { sink.Store(uint64(rand.Perm(n)[0])) }
	for _, length := range []int{1000, n, max(1<<20, math.MaxInt>>23+2)} {
		against(b, fmt.Sprintf("n=%d", length), "index", n, "Perm", perm, func() {
			at, sum := Random(length, 1).Order(0), 0
			pos := 0
			for range n {
				sum += at(pos)
				if pos++; pos == length {
					pos = 0
				}
			}
			sink.Store(uint64(sum))
		})
	}
	against(b, "torch", "index", n, "Perm", perm, func() { sink.Store(uint64(TorchRandom(n, 1).Order(0)(0))) })
}

// BenchmarkStart is the time and memory of New and of the first batch: for a data set of 10^12 samples, from the start and
// resumed in the middle, and for a small data set with workers.
func BenchmarkStart(b *testing.B) {
	const huge = 1_000_000_000_000 & (math.MaxInt / 4) // fewer on a machine of 32 bits
	opts := Options{BatchSize: 64, Shuffle: true}
	begin := func(b *testing.B, loader *DataLoader[[]int], at Cursor) {
		for _, err := range loader.Run(b.Context(), &at) {
			if err != nil {
				b.Fatal(err)
			}
			break
		}
	}
	loader, err := New(numbers(huge), List[int], opts)
	if err != nil {
		b.Fatal(err)
	}
	middle := Cursor{Pos: huge / 2, State: map[string]string{"by": fmt.Sprintf("Random(%d, seed 0)", huge)}}
	b.Run("New", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := New(numbers(huge), List[int], opts); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			begin(b, loader, Cursor{})
		}
	})
	b.Run("resumed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			begin(b, loader, middle)
		}
	})
	b.Run("first/workers=4", func(b *testing.B) {
		small, err := New(numbers(1000), List[int], Options{Workers: 4, Shuffle: true})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for epoch := 0; b.Loop(); epoch++ {
			begin(b, small, Cursor{Epoch: epoch})
		}
	})
}

// BenchmarkGoTree loads every .go file of the Go source tree, shuffled, against a plain loop over the same files.
func BenchmarkGoTree(b *testing.B) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	src := filepath.Join(strings.TrimSpace(string(out)), "src")
	if err != nil || len(src) <= len("/src") {
		b.Skipf("there is no Go source tree to load: go env GOROOT says %q, %v", out, err)
	}
	files, err := Files(os.DirFS(src), "**/*.go")
	if err != nil {
		b.Skipf("there is no Go source tree to load in %s: %v", src, err)
	}
	n, bytes, order := files.Len(), 0, Random(files.Len(), 0).Order(0)
	names := make([]string, n)
	for pos := range names {
		file, err := files.Get(b.Context(), order(pos))
		if err != nil {
			b.Fatal(err)
		}
		names[pos] = filepath.Join(src, file.Name)
		bytes += len(file.Data)
	}
	loop := func() {
		for _, name := range names {
			if _, err := os.ReadFile(name); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, workers := range []int{0, 1, 2, 4} {
		run := epochOf(b, files, List[File], Options{BatchSize: 32, Shuffle: true, Workers: workers})
		against(b, fmt.Sprintf("workers=%d", workers), "file", n, "loop", loop, run, amount{float64(n), "files"}, amount{float64(bytes) / 1e6, "MB"})
	}
}

// BenchmarkStreams is what a stage adds to an item of its source. The baseline is the source alone, and added-ns/item the
// difference.
func BenchmarkStreams(b *testing.B) {
	const n = 100000
	count := func(n int) Stream[int] { // as cheap as a stream can be
		return func(ctx context.Context, from Cursor) iter.Seq2[Item[int], error] {
			return func(yield func(Item[int], error) bool) {
				for pos := from.Pos; pos < n; pos++ {
					if !yield(Item[int]{Value: pos, Next: Cursor{from.Epoch, pos + 1, nil}}, nil) {
						return
					}
				}
			}
		}
	}
	ints := count(n)
	drain := func(s Stream[int]) func() {
		return func() {
			for _, err := range s(b.Context(), Cursor{}) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	base := drain(ints)
	line := func(name string, s Stream[int]) {
		b.Run(name, func(b *testing.B) {
			theirs, mine, allocs := rounds(b, base, drain(s))
			for i := range mine {
				mine[i] -= theirs[i]
			}
			b.ReportMetric(median(mine)/n, "added-ns/item")
			b.ReportMetric(allocs/n, "allocs/item")
		})
	}
	line("Map/inline", Map(ints, 0, quick))
	line("Filter", ints.Filter(func(i int) bool { return i >= 0 }))
	line("Take", ints.Take(n))
	line("Repeat", ints.Repeat(1))
	line("Shard", ints.Shard(Shard{}))
	line("Chain", Chain(ints))
	line("Shuffle", ints.Shuffle(1000, 1))
	line("Unbatch.Batch", Unbatch(Batch(ints, 64, List[int])))
	line("Prefetch", ints.Prefetch(64))
	line("Map/workers=2", Map(ints, 2, quick))

	pulled := func() {
		next, stop := iter.Pull2(ints(b.Context(), Cursor{}))
		defer stop()
		for {
			if _, _, ok := next(); !ok {
				return
			}
		}
	}
	pair := Zip(ints, ints)
	against(b, "Zip", "item", n, "Pull2", pulled, func() {
		for range pair(b.Context(), Cursor{}) {
		}
	})
	half := count(n / 2)
	against(b, "Mix/in-turn", "item", n, "Pull2", pulled, drain(Mix(MixOptions{Stop: StopAtLast}, half, half)))
	against(b, "Mix/weights", "item", n, "Pull2", pulled, drain(Mix(MixOptions{Weights: []float64{1, 1}, Stop: StopAtLast}, half, half)))

	work := burn(20 * time.Microsecond)
	const few = 2000
	two := func() {
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				for i := range few / 2 {
					work(i)
				}
			})
		}
		both.Wait()
	}
	busy := drain(Map(count(few), 2, func(_ context.Context, i int) (int, error) { work(i); return i, nil }))
	against(b, "Map/20µs", "item", few, "two-goroutines", two, busy)
}

// BenchmarkFirstBatch is the time to the first batch, of 32 samples that take 100 µs each. In the classic loader one worker
// loads it, in a pipeline all workers do.
func BenchmarkFirstBatch(b *testing.B) {
	work := burn(100 * time.Microsecond)
	get := func(_ context.Context, i int) (int, error) { work(i); return i, nil }
	first := func(s Stream[[]int]) func() {
		return func() {
			for range s.Epoch(b.Context(), 0) {
				return
			}
		}
	}
	loader, err := New(Func(4096, get), List[int], Options{BatchSize: 32, Workers: 2})
	if err != nil {
		b.Fatal(err)
	}
	against(b, "pipeline", "batch", 1, "loader", first(loader.Stream()), first(Batch(Map(Indices(Sequential(4096)), 2, get), 32, List[int])))
}

// BenchmarkResume is the time to the first item of a pipeline that resumes in the middle of 10^9.
func BenchmarkResume(b *testing.B) {
	const n = 1_000_000_000
	s := Batch(Map(Indices(Random(n, 1)), 2, quick), 64, List[int])
	at := Cursor{Pos: n / 2, State: map[string]string{"by": fmt.Sprintf("Indices(Random(%d, seed 1))", n)}}
	b.ReportAllocs()
	for b.Loop() {
		for _, err := range s.Run(b.Context(), &Cursor{Epoch: at.Epoch, Pos: at.Pos, State: at.State}) {
			if err != nil {
				b.Fatal(err)
			}
			break
		}
	}
}

// tarBench writes a shard of 20,000 records, each with a file of 4 KB and a file of 3 bytes. The headers are those of
// header, which says what they have besides sizes, and begins the names.
func tarBench(b *testing.B, header tar.Header) string {
	name := filepath.Join(b.TempDir(), "bench.tar")
	f := must(os.Create(name))
	buffered := bufio.NewWriterSize(f, 1<<20)
	w := tar.NewWriter(buffered)
	add := func(name string, data []byte) {
		h := header
		h.Typeflag, h.Mode, h.Name, h.Size = tar.TypeReg, 0o444, h.Name+name, int64(len(data))
		must(0, w.WriteHeader(&h))
		must(w.Write(data))
	}
	for i := range 20000 {
		bin := make([]byte, 4096)
		for j := 0; j < len(bin); j += 8 {
			binary.LittleEndian.PutUint64(bin[j:], counter(uint64(i), uint64(j)))
		}
		add(fmt.Sprintf("%08d.bin", i), bin)
		add(fmt.Sprintf("%08d.cls", i), fmt.Appendf(nil, "%03d", i%1000))
	}
	must(0, errors.Join(w.Close(), buffered.Flush(), f.Close()))
	return name
}

// BenchmarkTar reads shards with the headers that people have: of one block, as TarWriter and GNU tar write them; with
// PAX records of the time, as Python and thereby WebDataset; and with GNU long names.
func BenchmarkTar(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchTar(b, tar.Header{}) })
	b.Run("PAX", func(b *testing.B) {
		benchTar(b, tar.Header{Format: tar.FormatPAX, ModTime: time.Unix(1.7e9, 123456700)})
	})
	b.Run("long", func(b *testing.B) {
		benchTar(b, tar.Header{Format: tar.FormatGNU, Name: strings.Repeat("folder/", 20)})
	})
}

// benchTar reads a shard as a stream, against a bare loop of archive/tar that reads every entry; indexes it, against a
// bare loop over the headers; and reads records at random, against ReadAt of the same bytes.
func benchTar(b *testing.B, header tar.Header) {
	name := tarBench(b, header)
	bare := func(read bool) func() {
		return func() {
			f := must(os.Open(name))
			defer f.Close()
			r := tar.NewReader(bufio.NewReaderSize(f, tarBuffer))
			for h, err := r.Next(); err != io.EOF; h, err = r.Next() {
				if err == nil && read {
					_, err = io.ReadFull(r, make([]byte, h.Size))
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	stream := must(Tar([]string{name}, TarOptions{}))
	against(b, "stream", "record", 20000, "archive/tar", bare(true), func() {
		for _, err := range stream.Epoch(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}, amount{20000, "records"}, amount{float64(must(os.Stat(name)).Size()) / 1e6, "MB"})
	against(b, "index", "entry", 40000, "archive/tar", bare(false), func() {
		must(OpenTar(name)).Close()
	}, amount{40000, "entries"})

	data := must(OpenTar(name))
	defer data.Close()
	f := must(os.Open(name))
	defer f.Close()
	order := Random(data.Len(), 1).Order(0)
	members := data.shards[0].members
	against(b, "get", "record", 20000, "ReadAt", func() {
		for i := range data.Len() {
			first, last := members[2*order(i)], members[2*order(i)+1]
			must(f.ReadAt(make([]byte, last.data+last.size-first.head), first.head))
		}
	}, func() {
		for i := range data.Len() {
			must(data.Get(b.Context(), order(i)))
		}
	}, amount{20000, "records"})
	if err := data.WriteIndex(); err != nil {
		b.Fatal(err)
	}
	against(b, "from an index", "entry", 40000, "archive/tar", bare(false), func() {
		must(OpenTar(name)).Close()
	}, amount{40000, "entries"})
}
