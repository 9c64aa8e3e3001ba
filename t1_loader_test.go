package dataloader

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

// The classic loader's tests, in the order of the rooms: data sets, orders, batches, workers, and then the loader itself,
// which begins with the classic notebook's tests by their names.

// dataset.go: data sets, the random numbers of a sample, files.

// TestDatasets checks what each adapter makes of small data sets, and that all of them refuse an index outside.
func TestDatasets(t *testing.T) {
	letters := Slice[string]{"a", "b", "c", "d", "e"}
	indices := []int{4, 0, 0}
	subset := must(Subset(letters, indices))
	indices[0] = 1 // Subset has a copy
	equal(t, "Subset", values(t, subset), "[e a a]")
	equal(t, "Pairs", values(t, must(Pairs(letters, numbers(5)))), "[{a 0} {b 1} {c 2} {d 3} {e 4}]")
	equal(t, "Concat", values(t, Concat[string](Slice[string]{}, letters[:2], Slice[string]{}, letters[2:], Slice[string]{})), letters)
	equal(t, "Concat of nothing", values(t, Concat[int]()), "[]")
	square := func(_ context.Context, i int) (string, error) { return strconv.Itoa(i * i), nil }
	equal(t, "Transform", values(t, Transform(numbers(3), square)), "[0 1 4]")
	failed := Transform(failing(2, 0), func(_ context.Context, i int) (int, error) { return i, errors.New("not reached") })
	equal(t, "Transform of a failed sample", errorOf(failed.Get(t.Context(), 0)), errBad)
	for _, i := range []int{-1, 3} {
		part := must(Subset(numbers(9), []int{1, 2, 3}))
		for _, data := range []Dataset[int]{make(Slice[int], 3), numbers(3), Cache(numbers(3)), part, Concat(numbers(1), numbers(2))} {
			saysAll(t, errorOf(data.Get(t.Context(), i)), fmt.Sprint("index ", i), "3 samples")
		}
		batch := must(Subset[int](batchGetter[int]{n: 9}, upTo(3))).(BatchGetter[int])
		saysAll(t, errorOf(batch.GetBatch(t.Context(), []int{0, i})), fmt.Sprint("index ", i), "3 samples")
	}
}

// TestCache checks that each sample is fetched once. A fetch that failed or died is not kept, and leaves nobody waiting.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls [7]atomic.Int64
		fails := map[int]func() error{
			3: func() error { return errBad },
			4: func() error { panic("ouch") },
			5: func() error { runtime.Goexit(); return nil },
		}
		data := Cache(Func(7, func(_ context.Context, i int) (int, error) {
			time.Sleep(time.Second)
			if fail := fails[i]; calls[i].Add(1) == 1 && fail != nil {
				return 0, fail()
			}
			return i * i, nil
		}))
		var all sync.WaitGroup
		for k := range 20 * 7 {
			all.Go(func() {
				defer func() { recover() }()
				if v, err := data.Get(t.Context(), k%7); err == nil && v != k%7*(k%7) || err != nil && err != errBad {
					t.Error(k%7, v, err)
				}
			})
		}
		all.Wait()
		for i := range calls {
			equal(t, fmt.Sprint("fetches of ", i), calls[i].Load(), []int{1, 1, 1, 2, 2, 2, 1}[i])
		}
	})
}

// TestCacheWaiters checks that who waits for another's fetch gives up with its own context, and fetches if the other gives up.
func TestCacheWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := Cache(Dataset[int](&probe{n: 8, takes: always(time.Hour)}))
		var other sync.WaitGroup
		other.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			equal(t, "the other", errorOf(data.Get(ctx, 7)), context.DeadlineExceeded)
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, io.ErrNoProgress)
		defer cancel()
		start := time.Now()
		equal(t, "impatient", errorOf(data.Get(ctx, 7)), io.ErrNoProgress)
		equal(t, "its time", time.Since(start), time.Second)
		equal(t, "patient", must(data.Get(t.Context(), 7)), 7)
		equal(t, "its time", time.Since(start), time.Hour+time.Minute)
		other.Wait()
	})
}

// TestRetry checks the number of attempts, the time between them, and that each attempt has the same random numbers.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := 0
		flaky := Func(1, func(ctx context.Context, i int) (int, error) {
			first := Rand(ctx).IntN(1000)
			if failures--; failures >= 0 {
				return 0, errBad
			}
			return first, nil
		})
		drawn := func(data Dataset[int]) int { // two numbers are drawn before data draws
			ctx := WithSeed(t.Context(), 1)
			Rand(ctx).IntN(1000)
			Rand(ctx).IntN(1000)
			return must(data.Get(ctx, 0))
		}
		want := drawn(flaky)
		failures = 3
		start := time.Now()
		equal(t, "at the fourth attempt", drawn(Retry(flaky, 4, time.Second)), want)
		if d := time.Since(start); d < 3500*time.Millisecond || d > 7*time.Second {
			t.Errorf("waited %v, want 1, 2 and 4 seconds less up to a half", d)
		}
		hopeless := &probe{n: 1, bad: []int{0}}
		err := errorOf(Retry[int](hopeless, 3, 0).Get(t.Context(), 0))
		equal(t, "attempts, error", fmt.Sprint(hopeless.begun.Load(), errors.Is(err, errBad), err), "3 true after 3 attempts: bad sample")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, io.ErrNoProgress)
		defer cancel()
		start = time.Now()
		equal(t, "with the longest wait", errorOf(Retry(failing(1, 0), math.MaxInt, math.MaxInt64).Get(ctx, 0)), io.ErrNoProgress)
		equal(t, "stops with ctx", time.Since(start), time.Minute)
	})
}

// TestRand checks that the random numbers of a sample are its own, and the same for every number of workers, in order or
// not, after a resume, for any number of ranks, and by Batch.
func TestRand(t *testing.T) {
	shuffled := Options{Shuffle: true, Seed: 5, BatchSize: 4}
	getBatch := batchGetter[int]{10, func(ctx context.Context, indices []int) ([]int, error) {
		batch := make([]int, len(indices))
		for j := range batch {
			batch[j] = Rand(ctx).Int() // one generator for the batch
		}
		return batch, nil
	}}
	for _, l := range []loading{
		{"shuffled", augmented(), nil, shuffled, ""},
		{"batch sampler", augmented(), nil, Options{BatchSampler: Batches(Sequential(24), 4, false)}, ""},
		{"GetBatch", getBatch, nil, Options{BatchSize: 3}, ""},
	} {
		want := batches(t, newLoader(t, l.data, l.opts), 2)
		l.want = fmt.Sprint(want)
		l.check(t, 0)
		equal(t, l.name+": different numbers", len(slices.Compact(sorted(slices.Concat(want...)))), l.data.Len())
		l.opts.Workers, l.opts.Unordered = 3, true
		equal(t, l.name+": unordered", sorted(samples(t, newLoader(t, l.data, l.opts), 2)), sorted(slices.Concat(want...)))
	}
	together := make([]int, 24)
	for rank := range 2 {
		opts := Options{Shuffle: true, Seed: 5, BatchSize: 2, Shard: Shard{rank, 2}}
		for k, number := range samples(t, newLoader(t, augmented(), opts), 2) {
			together[2*k+rank] = number
		}
	}
	equal(t, "two ranks", together, samples(t, newLoader(t, augmented(), shuffled), 2))
}

// TestRandDiffers checks that every epoch and seed has random numbers of its own, except inside a Cache.
func TestRandDiffers(t *testing.T) {
	var all []int
	for k := range 6 {
		all = append(all, samples(t, newLoader(t, augmented(), Options{Shuffle: true, Seed: uint64(k % 2)}), k/2)...)
	}
	equal(t, "different numbers", len(slices.Compact(sorted(all))), 6*24)
	opts := Options{Shuffle: true, Seed: 5}
	cached := newLoader(t, Cache(augmented()), opts)
	first, third := samples(t, cached, 0), samples(t, cached, 3)
	equal(t, "fetched before", samples(t, cached, 0), first)
	opts.Workers = 2
	equal(t, "first fetched in epoch 3", samples(t, newLoader(t, Cache(augmented()), opts), 3), third)
}

// TestWorker checks that all workers load, that each knows its number, and that nobody else has one.
func TestWorker(t *testing.T) {
	for workers, want := range [][]int{{-1}, {0}, {0, 1}, {0, 1, 2}} {
		synctest.Test(t, func(t *testing.T) {
			data := Transform(&probe{n: 12, takes: always(time.Second)}, func(ctx context.Context, _ int) (int, error) {
				return Worker(WithSeed(ctx, 1)), nil
			})
			loader := newLoader(t, data, Options{Workers: workers})
			equal(t, "workers", slices.Compact(sorted(samples(t, loader, 0))), want)
			equal(t, "Batch", must(loader.Batch(t.Context(), 0, 0)), "[-1]")
		})
	}
	equal(t, "outside", Worker(t.Context()), -1)
}

// TestFiles checks which files the patterns match, and that a folder that cannot be read is an error if it could have some.
func TestFiles(t *testing.T) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	if err := errors.Join(w.AddFS(tree()), w.Close()); err != nil {
		t.Fatal(err)
	}
	zipped := must(zip.NewReader(bytes.NewReader(archive.Bytes()), int64(archive.Len())))
	for _, c := range []struct {
		patterns []string
		want     string
	}{
		{nil, ".git/config a.txt b.png cat/.hidden cat/1.png cat/2.png cat/old/0.png dog/1.png dog/x/y/z.txt"},
		{[]string{"*.png"}, "b.png"},
		{[]string{"*/*.png"}, "cat/1.png cat/2.png dog/1.png"},
		{[]string{"**/*.png"}, "b.png cat/1.png cat/2.png cat/old/0.png dog/1.png"},
		{[]string{"cat/**"}, "cat/.hidden cat/1.png cat/2.png cat/old/0.png"},
		{[]string{"cat/**/*.png"}, "cat/1.png cat/2.png cat/old/0.png"},
		{[]string{"**/x/**/z.*"}, "dog/x/y/z.txt"},
		{[]string{"dog/1.png"}, "dog/1.png"},
		{[]string{"[ab].*", "a.txt", "*/1.png"}, "a.txt b.png cat/1.png dog/1.png"},
	} {
		for _, fsys := range []fs.FS{tree(), zipped} {
			var names []string
			for _, file := range values(t, must(Files(fsys, c.patterns...))) {
				equal(t, "content", string(file.Data), "in "+file.Name)
				names = append(names, file.Name)
			}
			equal(t, fmt.Sprint(c.patterns), strings.Join(names, " "), c.want)
		}
	}
	for pattern, reads := range map[string]bool{"*.png": false, "cat/*.png": false, "c*/*.png": false, "*/*.png": true, "**/*.png": true, "dog/*": true} {
		if err := errorOf(Files(closedFS{tree()}, pattern)); errors.Is(err, fs.ErrPermission) != reads || !reads && err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	equal(t, "an empty tree", must(Files(fstest.MapFS{})).Len(), 0)
}

// TestFilesOnDisk checks that files are read when they are asked for, and which links are followed.
func TestFilesOnDisk(t *testing.T) {
	dir := t.TempDir()
	os.CopyFS(dir, fstest.MapFS{"1": {Data: []byte("old")}, "2": {}, "3": {Data: []byte("3")}, "sub/4": {}})
	links := os.Symlink("1", filepath.Join(dir, "link")) == nil // not everywhere
	os.Symlink("sub", filepath.Join(dir, "folder"))
	data := must(Files(os.DirFS(dir), "*"))
	os.WriteFile(filepath.Join(dir, "1"), []byte("new"), 0o600)
	os.Remove(filepath.Join(dir, "2"))
	var got []string
	for batch, err := range newLoader(t, data, Options{Workers: 2}).Epoch(t.Context(), 0) {
		if err == nil {
			got = append(got, batch[0].Name+"="+string(batch[0].Data))
		} else {
			got = append(got, fmt.Sprint("missing: ", errors.Is(err, fs.ErrNotExist)))
		}
	}
	equal(t, "files", got, []string{"1=new", "missing: true", "3=3", "link=new"}[:data.Len()])
	if links {
		equal(t, "through a link to a folder", values(t, must(Files(os.DirFS(dir), "folder/*", "**/4", "*/4"))), "[{folder/4 []} {sub/4 []}]")
		os.Symlink("nowhere", filepath.Join(dir, "broken"))
		equal(t, "a broken link is an error", errors.Is(errorOf(Files(os.DirFS(dir))), fs.ErrNotExist), true)
	}
}

// TestFolder checks the classes and the labels, that hidden names are left out at every depth, and that a class may be a link.
func TestFolder(t *testing.T) {
	folder := func(fsys fs.FS) string {
		data, classes, err := Folder(fsys)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(classes, values(t, data))
	}
	names := fstest.MapFS{}
	for _, name := range strings.Fields("a.txt cat/2 cat/.3 cat/.old/1 cat/a/.4 cat/a/.b/5 cat/a/6. dog/x/y/z .git/7") {
		names[name] = &fstest.MapFile{}
	}
	equal(t, "samples", folder(names), "[cat dog] [{{cat/2 []} 0} {{cat/a/6. []} 0} {{dog/x/y/z []} 1}]")
	dir := t.TempDir()
	os.CopyFS(dir, fstest.MapFS{"root/cat/1": {}, "elsewhere/2": {}})
	if os.Symlink("../elsewhere", filepath.Join(dir, "root/dog")) == nil { // not everywhere
		equal(t, "with a link", folder(os.DirFS(filepath.Join(dir, "root"))), "[cat dog] [{{cat/1 []} 0} {{dog/2 []} 1}]")
	}
}

// TestBadDatasets checks that arguments that can never be right are refused, also by what makes batches.
func TestBadDatasets(t *testing.T) {
	const wraps = (4*math.MaxInt + 7) / 5 // 5 × wraps is 3 in the integers of a machine
	some, none := numbers(3), Dataset[int](nil)
	split := func(lengths ...int) error { return errorOf(Split(numbers(10), 1, lengths...)) }
	files := func(pattern string) error { return errorOf(Files(tree(), "a.txt", pattern)) }
	rows := func(shape ...int) error { return errorOf(Rows(Tensor[int]{make([]int, 3), shape})) }
	folder := func(fsys fs.FS) error { _, _, err := Folder(fsys); return err }
	refused(t, []refusal{
		{panicOf(func() { Func(-1, some.Get) }), "panic … Func … -1"},
		{panicOf(func() { Func[int](1, nil) }), "panic … Func … nil"},
		{panicOf(func() { Concat(some, nil) }), "panic … Concat … part 1"},
		{panicOf(func() { Transform[int, int](some, nil) }), "panic … Transform … nil"},
		{panicOf(func() { Transform(none, quick) }), "panic … Transform … nil"},
		{panicOf(func() { Cache(none) }), "panic … Cache … nil"},
		{panicOf(func() { Retry(none, 1, 0) }), "panic … Retry … nil"},
		{panicOf(func() { Retry(some, 0, 0) }), "panic … Retry … attempts is 0 … at least 1"},
		{panicOf(func() { Retry(some, 1, -time.Second) }), "panic … Retry … backoff is -1s"},
		{panicOf(func() { Rand(t.Context()) }), "panic … Rand … from no loader"},
		{panicOf(func() { CollatePair[int, int, []int, []int](List[int], nil) }), "panic … CollatePair … nil"},
		{panicOf(func() { CollatePair[int, int, []int, []int](nil, List[int]) }), "panic … CollatePair … nil"},
		{errorOf(Pairs(some, numbers(4))), "Pairs … 3 … 4"},
		{errorOf(Pairs(none, some)), "Pairs … nil"},
		{errorOf(Pairs(some, none)), "Pairs … nil"},
		{errorOf(Subset(some, []int{0, 3})), "Subset … indices[1] … index 3 … 3 samples"},
		{errorOf(Subset(some, []int{-1})), "Subset … indices[0] … index -1 … 3 samples"},
		{errorOf(Subset(none, nil)), "Subset … nil"},
		{split(-1, 11), "Split … lengths[0] is -1 … 0 to 10"},
		{split(3, 8), "Split … lengths[1] is 8 … 0 to 7"},
		{split(3, 6), "Split … sum to 9 … 10"},
		{errorOf(Split(none, 1)), "Split … nil"},
		{rows(), "Rows … no dimension"},
		{rows(2, 2), "Rows … 3 elements … [2 2]"},
		{rows(-3, -1), "Rows … 3 elements … [-3 -1]"},
		{rows(5, wraps), "Rows … 3 elements … [5 "},
		{errorOf(Files(nil)), "Files … nil"},
		{files("cow/*.png"), `Files: … pattern "cow/*.png": it matches no file`},
		{files(""), `Files: … pattern "": it matches no file`},
		{files("a/["), "Files: … syntax error in pattern"},
		{files("../x"), "Files: … matches no file"},
		{folder(nil), "Folder … nil"},
		{folder(os.DirFS("testdata/missing")), "Folder: testdata/missing: "},
		{folder(fstest.MapFS{"a.txt": {}}), "Folder: … no folder"},
		{folder(fstest.MapFS{"cat/1": {}, "dog": {Mode: fs.ModeDir}}), `Folder: … class "dog" has no file`},
	})
}

// sampler.go: orders, draws, batches of similar length, shards.

// TestRandomIsBijection checks that every index comes once, for all small lengths and around powers of two and four, where
// others have lost samples. For huge lengths it undoes the network.
func TestRandomIsBijection(t *testing.T) {
	lengths := append(upTo(301), maxTable-1, maxTable+2, 1<<20+1, 1281167)
	for k := 9; k <= 18; k++ {
		lengths = append(lengths, 1<<k-1, 1<<k, 1<<k+1)
	}
	for _, n := range lengths {
		for key := range 3 {
			seen := make([]bool, n)
			for pos, i := range positions(Random(n, uint64(key)), 2-key) {
				if i < 0 || i >= n || seen[i] {
					t.Fatalf("n %d, seed %d: position %d has %d, which is outside or comes twice", n, key, pos, i)
				}
				seen[i] = true
			}
		}
	}
	huge := []uint64{maxTable + 1, 1e6, 1<<30 - 1, 1 << 30, math.MaxInt32}
	if strconv.IntSize == 64 {
		huge = append(huge, 1<<32-1, 1<<32, 1<<32+1, 1e12, 1<<40+1, 1<<62-1, 1<<62)
	}
	for _, n := range huge {
		f := newFeistel(n, n)
		if domain := f.a << f.k; domain < n || domain-n > 1<<(f.k+1) {
			t.Errorf("n %d: the domain is %d", n, domain)
		}
		for k := range uint64(1000) {
			pos := counter(n, k) % n
			i := uint64(f.at(int(pos)))
			if back := undo(f, i); i >= n || back != pos {
				t.Fatalf("n %d: position %d has %d, which is position %d's", n, pos, i, back)
			}
		}
	}
}

// TestRandomIsUniform checks by chi-square that over seeds and epochs Random is a good shuffle. Weak networks fail it.
func TestRandomIsUniform(t *testing.T) {
	bySeed := func(n, key int) func(pos int) int { return Random(n, uint64(key)).Order(0) }
	byEpoch := func(n, key int) func(pos int) int { return Random(n, 0).Order(key) }
	pairs := func(n int) [][]int { return [][]int{{0, 1}, {1, 2}, {0, n / 2}, {n - 2, n - 1}} }
	few, lengths := []int{3, 4, 5}, []int{10, 33, 100, 300, 1000, maxTable, maxTable + 1, 1 << 16, 65537, 1281167}
	for _, c := range []struct {
		what    string
		lengths []int
		most    float64 // standard deviations
		misses  func(n int) float64
	}{
		{"permutations by seed", few, 4, func(n int) float64 { return missed(t, n, 60000, bySeed, upTo(n)) }},
		{"permutations by epoch", few, 4, func(n int) float64 { return missed(t, n, 60000, byEpoch, upTo(n)) }},
		{"pairs by seed", lengths, 4, func(n int) float64 { return missed(t, n, 20000, bySeed, pairs(n)...) }},
		{"pairs by epoch", lengths, 4, func(n int) float64 { return missed(t, n, 20000, byEpoch, pairs(n)...) }},
		{"classes in batches, if sorted by class,", []int{50000, 1281167, 1 << 20, 1 << 30}, 1.8, func(n int) float64 { // a trainer would notice
			squares := 0.0
			for seed := range uint64(12) {
				order, z := Random(n, seed).Order(0), 0.0
				for b := range 150 {
					counts := make([]int, 32)
					for pos := b * 128; pos < (b+1)*128; pos++ {
						counts[uint64(order(pos))*32/uint64(n)]++
					}
					z += zScore(t, counts)
				}
				squares += z * z / 150
			}
			return math.Sqrt(squares / 12)
		}},
		{"agreements of (seed, epoch) and (seed+1, epoch-1)", []int{1000, 100000}, 4, func(n int) float64 {
			agree := 0 // one position in each pair of orders
			for seed := range uint64(100) {
				a, b := Random(n, seed).Order(5), Random(n, seed+1).Order(4)
				for pos := range n {
					if a(pos) == b(pos) {
						agree++
					}
				}
			}
			return float64(agree-100) / math.Sqrt(100)
		}},
	} {
		for _, n := range c.lengths {
			if z := c.misses(n); math.Abs(z) > c.most {
				t.Errorf("n %d: the %s miss by %.1f standard deviations", n, c.what, z)
			}
		}
	}
}

// missed says how far the values, in bins, at the worst of some sets of positions are from chance, over so many keys.
func missed(t *testing.T, n, keys int, order func(n, key int) func(pos int) int, sets ...[]int) (worst float64) {
	bins := min(n, 16)
	bin := func(value int) int { return ((value+1)*bins - 1) / n }
	weights := slices.Repeat([]float64{1}, int(math.Pow(float64(bins), float64(len(sets[0])))))
	for cell := range weights { // a digit for each position, its bin
		taken, rest := make([]int, bins), cell // a value does not come twice
		for range sets[0] {
			b := rest % bins
			weights[cell] *= float64((b+1)*n/bins - b*n/bins - taken[b])
			taken[b]++
			rest /= bins
		}
	}
	counts := make([]int, len(sets)*len(weights))
	for key := range keys {
		at := order(n, key)
		for s, set := range sets {
			cell := 0
			for _, pos := range set {
				cell = cell*bins + bin(at(pos))
			}
			counts[s*len(weights)+cell]++
		}
	}
	for each := range slices.Chunk(counts, len(weights)) {
		worst = max(worst, math.Abs(zScore(t, each, weights...)))
	}
	return worst
}

// TestGoldenOrders pins orders and random numbers. They must not change, because a cursor has only the seed.
func TestGoldenOrders(t *testing.T) {
	weights := []float64{.1, .9, .4, .7, 3, .6}
	buckets := must(Buckets([]int{3, 9, 4, 4, 8, 1, 3, 9}, 18, 1)).Batches(0)
	drawn := Func(10, func(ctx context.Context, i int) (string, error) {
		return fmt.Sprint(Rand(ctx).IntN(1000), Rand(ctx).IntN(1000)), nil
	})
	for _, c := range []struct {
		got  any
		want string
	}{
		{positions(Random(10, 0), 0), "[5 0 2 6 3 8 9 4 1 7]"},
		{positions(Random(10, 0), 1), "[2 6 7 0 9 1 4 5 8 3]"},
		{positions(Random(10, 1), 0), "[2 0 9 7 1 5 4 6 8 3]"},
		{positions(Random(5000, 0), 0)[:5], "[2496 3590 4037 2124 4576]"},
		{positions(Random(131073, 0), 0)[:5], "[70077 24005 18452 1604 34750]"},
		{positions(RandomWithReplacement(10, 10, 0), 0), "[7 3 6 9 6 1 5 7 5 6]"},
		{positions(must(Weighted(weights, 6, true, 0)), 0), "[1 1 4 5 4 3]"},
		{positions(must(Weighted(weights, 6, false, 0)), 0), "[1 4 5 0 2 3]"},
		{fmt.Sprint(buckets(0), buckets(1), buckets(2), buckets(3)), "[3 2] [0 6] [5] [7 4]"},
		{batches(t, newLoader(t, drawn, Options{Seed: 9}), 2)[7], "[553 203]"},
	} {
		equal(t, "an order that has changed", c.got, c.want)
	}
	if n := int64(1e12); strconv.IntSize == 64 {
		at := Random(int(n), 7).Order(0)
		equal(t, "a long order that has changed", fmt.Sprint(at(0), at(1), at(2)), "355048705807 329753703346 644169081424")
	}
}

// TestTorch compares randperm, DistributedSampler and random_split with orders that torch has produced.
func TestTorch(t *testing.T) {
	type order[Out any] struct {
		N, World, Epoch int
		Seed            uint64
		DropLast        bool `json:"drop_last"`
		Shuffle         bool
		Ranks           [][]int
		Out             Out
	}
	var torch struct {
		Randperm    []order[[]int]
		Distributed []order[any]
		RandomSplit []order[[][]int] `json:"random_split"`
	}
	err := json.Unmarshal(must(os.ReadFile("testdata/torch_orders.json")), &torch)
	if err != nil || len(torch.Randperm) == 0 || len(torch.Distributed) == 0 || len(torch.RandomSplit) == 0 {
		t.Fatalf("something is missing; %v", err)
	}
	for _, c := range torch.Randperm {
		equal(t, fmt.Sprintf("randperm %+v", c), positions(TorchRandom(c.N, c.Seed), 0), c.Out)
	}
	for _, c := range torch.Distributed {
		opts := Options{BatchSize: 3, Tail: map[bool]Tail{false: PadTail, true: DropTail}[c.DropLast]}
		if c.Shuffle {
			opts.Sampler = TorchRandom(c.N, c.Seed)
		}
		for rank, want := range c.Ranks {
			opts.Shard, opts.Workers = Shard{rank, c.World}, rank%3
			equal(t, fmt.Sprintf("%+v rank %d", c, rank), samples(t, newLoader(t, numbers(c.N), opts), c.Epoch), want)
		}
	}
	for _, c := range torch.RandomSplit {
		var lengths []int
		for _, part := range c.Out {
			lengths = append(lengths, len(part))
		}
		for p, part := range must(Split(numbers(c.N), c.Seed, lengths...)) {
			equal(t, fmt.Sprintf("split %+v part %d", c, p), values(t, part), c.Out[p])
		}
	}
}

// TestOrderFunc checks that a caller that shuffles one slice in place does not disturb an epoch under way, and that an order
// that could not be computed is asked for again, but not one that could.
func TestOrderFunc(t *testing.T) {
	indices, calls := []int{0, 1, 2}, 0
	s := OrderFunc(3, func(epoch int) []int {
		if calls++; calls == 1 {
			panic("not yet")
		}
		slices.Sort(indices)
		indices[0], indices[epoch] = indices[epoch], indices[0]
		return indices
	})
	loader := newLoader(t, numbers(3), Options{Sampler: s})
	equal(t, "first", len(outcomes(loader.Epoch(t.Context(), 0))), 3)
	order := s.Order(1)
	equal(t, "again", outcomes(loader.Epoch(t.Context(), 0)), "[[0] [1] [2]]")
	equal(t, "epoch 1", []int{order(0), order(1), order(2)}, "[1 0 2]")
	equal(t, "by Batch", must(loader.Batch(t.Context(), 0, 1)), "[1]")
	equal(t, "calls", calls, 3)
}

// TestResize checks that a resized sampler walks on through the epochs of the one inside.
func TestResize(t *testing.T) {
	for _, s := range []Sampler{Random(7, 1), Sequential(3), RandomWithReplacement(5, 9, 2)} {
		var endless []int
		for epoch := range 60 {
			endless = append(endless, positions(s, epoch)...)
		}
		for _, count := range []int{1, 6, 7, 8, 14, 15, 30} {
			r := Resize(s, count)
			equal(t, "length", r.Len(), count)
			equal(t, fmt.Sprint(r), slices.Concat(positions(r, 0), positions(r, 1), positions(r, 5)), slices.Concat(endless[:2*count], endless[5*count:6*count]))
		}
	}
	equal(t, "of nothing", Resize(Sequential(0), 0).Len(), 0)
}

// TestReplacement checks that each draw is by the weights, or by the weights of what is left, however large or small they
// are, and that weight 0 is never drawn. RandomWithReplacement is uniform in many short epochs.
func TestReplacement(t *testing.T) {
	fits := func(drawn []int, weights ...float64) {
		t.Helper()
		counts := make([]int, len(weights))
		for _, i := range drawn {
			counts[i]++
		}
		if z := zScore(t, counts, weights...); math.Abs(z) > 4 {
			t.Errorf("%.1f standard deviations from %v", z, weights[:min(9, len(weights))])
		}
	}
	same := slices.Repeat([]float64{.1}, 100)
	fits(positions(Resize(RandomWithReplacement(100, 10, 5), 100000), 0), same...)
	for _, weights := range [][]float64{{0, 1, 0, 3}, {1e308, 1e308, 5e307}, {1e-300, 3e-300}, {0, 5}, {1, 1e-9, 1, 0, 1}, same} {
		fits(positions(must(Weighted(weights, 200000, true, 3)), 0), weights...)
	}
	var pairs, tiny []int // as one number; tiny weights, by which a waiting time would be infinite
	for epoch := range 20000 {
		drawn := positions(must(Weighted([]float64{2, 0, 6, 1}, 2, false, 2)), epoch)
		pairs = append(pairs, drawn[0]*4+drawn[1])
		drawn = positions(must(Weighted([]float64{1e-310, 1e-310, 1e-310}, 3, false, 2)), epoch)
		tiny = append(tiny, drawn[0]*3+drawn[1])
	}
	fits(pairs, []float64{2: 2. / 9 * 6 / 7, 3: 2. / 9 * 1 / 7, 8: 6. / 9 * 2 / 3, 11: 6. / 9 * 1 / 3, 12: 1. / 9 * 2 / 8, 14: 1. / 9 * 6 / 8, 15: 0}...)
	fits(tiny, 0, 1, 1, 1, 0, 1, 1, 1, 0)
	equal(t, "all", sorted(positions(must(Weighted([]float64{1, 5, 2, 9}, 4, false, 2)), 3)), "[0 1 2 3]")
	a, b := must(Weighted([]float64{1, 2}, 2, true, 0)), must(Weighted([]float64{2, 1}, 2, true, 0))
	equal(t, "other weights have the same description", fmt.Sprint(a) == fmt.Sprint(b), false)
}

// TestBuckets checks that batches by length keep to the budget, waste little and have every sample once, anew in every epoch.
func TestBuckets(t *testing.T) {
	const budget = 1000
	random := rand.New(rand.NewPCG(1, 2))
	lengths, total := make([]int, 2000), 0
	for i := range lengths {
		lengths[i] = int(random.ExpFloat64() * 50)
		total += lengths[i]
	}
	s := must(Buckets(lengths, budget, 5))
	contents, shapes := map[string]bool{}, map[string]bool{} // of the epochs
	for epoch := range 3 {
		var all []string
		var seen, longests []int
		padded := 0
		for k := range s.Len() {
			batch := sorted(s.Batches(epoch)(k))
			longest := lengths[slices.MaxFunc(batch, func(i, j int) int { return lengths[i] - lengths[j] })]
			if longest*len(batch) > budget {
				t.Fatalf("batch %d has %d samples of at most %d", k, len(batch), longest)
			}
			padded += longest * len(batch)
			all, seen, longests = append(all, fmt.Sprint(batch)), append(seen, batch...), append(longests, longest)
		}
		equal(t, "all samples", sorted(seen), upTo(len(lengths)))
		if waste := 1 - float64(total)/float64(padded); waste > .1 {
			t.Errorf("%.0f %% of the batches is padding", 100*waste)
		}
		slices.Sort(all)
		contents[fmt.Sprint(all)], shapes[fmt.Sprint(longests)] = true, true
	}
	equal(t, "different orders of batches, and batches", []int{len(shapes), len(contents)}, "[3 3]")
	other := must(Buckets(append(slices.Clone(lengths[1:]), 3), budget, 5))
	equal(t, "other lengths have the same description", fmt.Sprint(s) == fmt.Sprint(other), false)
	equal(t, "no samples", must(Buckets(nil, 1, 0)).Len(), 0)
	equal(t, "the longest", must(Buckets([]int{math.MaxInt, 1}, math.MaxInt, 0)).Len(), 2)
	equal(t, "no lengths", len(must(Buckets(make([]int, 7), 3, 0)).Batches(0)(0)), 2)
}

// FuzzDeal checks what each shard gets, from any position, for every length, number of shards and batch size. After each
// step all ranks have the same cursor; before it are the samples that they have had together, so that their number may change.
func FuzzDeal(f *testing.F) {
	for k := range 400 {
		f.Add(k%17, k%7*(k%3), k/2, k/5, k%8 == 0, k%3)
	}
	for from := range 18 {
		f.Add(17, from, 3, from%5, from%2 == 0, from%3)
	}
	f.Fuzz(func(t *testing.T, n, from, count, size int, dropLast bool, tail int) {
		n, count, size, tail = int(uint(n)%200), 1+int(uint(count)%9), 1+int(uint(size)%20), int(uint(tail)%3)
		from = int(uint(from) % uint(n+1))
		if dropLast {
			size = min(size, max(1, n)) // a larger one is refused
		}
		steps, after := map[int][]int{}, map[int]Cursor{} // of all ranks, by their number
		for rank := range count {
			opts := Options{BatchSize: size, DropLast: dropLast, Shard: Shard{rank, count}, Tail: Tail(tail)}
			at, got := Cursor{Pos: from, State: map[string]string{"by": fmt.Sprintf("Sequential(%d)", n)}}, [][]int{}
			for item, err := range newLoader(t, numbers(n), opts).Stream()(t.Context(), at) {
				if err != nil || item.Err != nil || item.Next.Pos <= at.Pos || item.Next.Pos > n {
					t.Fatalf("%+v: after %d: %d, %v, %v", opts, at.Pos, item.Next.Pos, item.Err, err)
				}
				k := len(got)
				at, got, steps[k] = item.Next, append(got, item.Value), append(steps[k], item.Value...)
				if other, ok := after[k]; ok {
					equal(t, "the cursor of another rank", throughJSON(t, at), other)
				}
				after[k] = throughJSON(t, at)
			}
			equal(t, fmt.Sprintf("%d from %d, %+v", n, from, opts), got, expect(upTo(n), from, opts))
		}
		for k, pos := 0, from; k < len(after) && Tail(tail) == UnevenTail && !dropLast; k++ {
			equal(t, fmt.Sprintf("step %d of %d ranks", k, count), sorted(steps[k]), upTo(n)[pos:after[k].Pos])
			pos = after[k].Pos
		}
	})
}

// TestHuge checks lengths and batch sizes near the largest int, and a batch that is too large an element for a channel.
func TestHuge(t *testing.T) {
	for tail, want := range map[Tail]string{PadTail: "[[1 3 0]]", DropTail: "[[1 3]]", UnevenTail: "[[1 3]]"} {
		loader := newLoader(t, numbers(5), Options{BatchSize: math.MaxInt, Shard: Shard{1, 2}, Tail: tail})
		equal(t, "one batch of all", batches(t, loader, 0), want)
	}
	saysAll(t, errorOf(New(numbers(math.MaxInt), List[int], Options{})), "length", strconv.Itoa(math.MaxInt), "must be 0 to")
	const n = math.MaxInt/4 + 1
	loader := newLoader(t, numbers(n), Options{BatchSize: n / 4, Shard: Shard{2, 3}})
	equal(t, "batches, positions after one and two", []int{loader.Len(), loader.deal.after(1), loader.deal.after(2)}, []int{2, 3 * (n / 4), n})
	at := Cursor{Pos: n - 7, State: map[string]string{"by": fmt.Sprintf("Sequential(%d)", n)}}
	loader = newLoader(t, numbers(n), Options{BatchSize: 2, Shard: Shard{2, 3}, Workers: 2})
	equal(t, "the end", collect(t, loader.Run(t.Context(), &at)), [][]int{{n - 5, n - 2}, {1}})
	arrays := must(New(numbers(6), func(dst [20000]int, samples []int) ([20000]int, error) {
		copy(dst[:], samples)
		return dst, nil
	}, Options{BatchSize: 2, Workers: 2}))
	for k, batch := range collect(t, arrays.Stream().Prefetch(2).Epoch(t.Context(), 0)) {
		equal(t, "array", batch[:2], []int{2 * k, 2*k + 1})
	}
}

// TestShardFromEnv checks the variables of each launcher, which of them comes first, and numbers that make no sense.
func TestShardFromEnv(t *testing.T) {
	all := strings.Fields("RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE SLURM_PROCID SLURM_NTASKS PMI_RANK PMI_SIZE JOB_COMPLETION_INDEX")
	for _, c := range []struct{ env, want string }{
		{"", "no error, {0 0}"},
		{"WORLD_SIZE=1", "no error, {0 0}"},
		{"RANK=2 WORLD_SIZE=4", "no error, {2 4}"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "no error, {1 2}"},
		{"SLURM_PROCID=3 SLURM_NTASKS=8", "no error, {3 8}"},
		{"PMI_RANK=1 PMI_SIZE=3", "no error, {1 3}"},
		{"SLURM_PROCID=3 SLURM_NTASKS=8 PMI_RANK=1 PMI_SIZE=3", "no error, {3 8}"},
		{"JOB_COMPLETION_INDEX=5 WORLD_SIZE=6", "no error, {5 6}"},
		{"RANK=0 WORLD_SIZE=2 SLURM_PROCID=3 SLURM_NTASKS=8", "no error, {0 2}"},
		{"RANK= WORLD_SIZE=4", `RANK is "" and WORLD_SIZE is "4"`},
		{"RANK=2", `RANK is "2" and WORLD_SIZE is ""`},
		{"WORLD_SIZE=4", `WORLD_SIZE is "4" but RANK is not set`},
		{"RANK=4 WORLD_SIZE=4", `RANK is "4" and WORLD_SIZE is "4"`},
		{"RANK=-1 WORLD_SIZE=4", `RANK is "-1"`},
	} {
		t.Run(c.env, func(t *testing.T) {
			for _, name := range all {
				t.Setenv(name, "") // so that it is put back
				os.Unsetenv(name)
			}
			for _, setting := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(setting, "=")
				t.Setenv(name, value)
			}
			shard, err := ShardFromEnv()
			if err == nil {
				err = fmt.Errorf("no error, %v", shard)
			}
			saysAll(t, err, c.want)
		})
	}
}

// TestBadSamplers checks that arguments that can never be right are refused.
func TestBadSamplers(t *testing.T) {
	weighted := func(count int, replace bool, weights ...float64) error {
		return errorOf(Weighted(weights, count, replace, 0))
	}
	buckets := func(budget int, lengths ...int) error { return errorOf(Buckets(lengths, budget, 0)) }
	refused(t, []refusal{
		{panicOf(func() { Sequential(-1) }), "panic … Sequential … -1"},
		{panicOf(func() { Random(-1, 0) }), "panic … Random … -1"},
		{panicOf(func() { TorchRandom(-1, 0) }), "panic … TorchRandom … -1"},
		{panicOf(func() { TorchRandom(1<<30, 0) }), "panic … TorchRandom … 1073741824 … 214748364"},
		{panicOf(func() { RandomWithReplacement(-1, 1, 0) }), "panic … RandomWithReplacement … -1"},
		{panicOf(func() { RandomWithReplacement(3, 0, 0) }), "panic … RandomWithReplacement … count is 0 … positive"},
		{panicOf(func() { RandomWithReplacement(3, -1, 0) }), "panic … count is -1"},
		{panicOf(func() { RandomWithReplacement(0, 1, 0) }), "panic … count is 1 … no samples"},
		{panicOf(func() { OrderFunc(1, nil) }), "panic … OrderFunc … nil"},
		{panicOf(func() { OrderFunc(-1, func(int) []int { return nil }) }), "panic … OrderFunc … -1"},
		{panicOf(func() { Resize(nil, 1) }), "panic … Resize … nil"},
		{panicOf(func() { Resize(Sequential(3), 0) }), "panic … Resize … count is 0"},
		{panicOf(func() { Batches(Sequential(3), 0, false) }), "panic … Batches … size is 0 … positive"},
		{panicOf(func() { Batches(nil, 1, false) }), "panic … Batches … nil"},
		{weighted(1, true, 1, -1), "Weighted … weights[1] is -1 … not negative"},
		{weighted(1, true, 1, math.NaN()), "Weighted … weights[1] is NaN"},
		{weighted(1, false, math.Inf(1)), "Weighted … weights[0] is +Inf … finite"},
		{weighted(1, true, 0, 0), "Weighted … none of the 2 weights is positive"},
		{weighted(0, true, 1), "Weighted … count is 0 … positive"},
		{weighted(3, false, 1, 2), "Weighted … count is 3 … at most 2"},
		{weighted(2, false, 1, 0, 0), "Weighted … count is 2 … at most 1"},
		{buckets(8, 1, 9), "Buckets … lengths[1] is 9 … 8, the budget"},
		{buckets(8, -1), "Buckets … lengths[0] is -1"},
		{buckets(0), "Buckets … budget is 0 … positive"},
	})
}

// batch.go: what samples become.

// TestRows checks that a row is a view of the tensor's memory, which an append to it leaves alone.
func TestRows(t *testing.T) {
	table := Tensor[int]{[]int{1, 2, 3, 4, 5, 6}, []int{3, 2}}
	rows := must(Rows(table))
	equal(t, "rows", values(t, rows), "[{[1 2] [2]} {[3 4] [2]} {[5 6] [2]}]")
	row := must(rows.Get(t.Context(), 1))
	equal(t, "a row shares the tensor's memory", &row.Data[0] == &table.Data[2], true)
	_ = append(row.Data, 9)
	equal(t, "after an append to row 1", table.Data, "[1 2 3 4 5 6]")
	equal(t, "rows of a vector", values(t, must(Rows(Tensor[int]{[]int{1, 2}, []int{2}}))), "[{[1] []} {[2] []}]")
	equal(t, "empty rows", values(t, must(Rows(Tensor[int]{nil, []int{2, 0}}))), "[{[] [0]} {[] [0]}]")
}

// TestStackAndPad checks the shape and the memory of the batch. Stack wants samples of one shape; Pad fills up the shorter.
func TestStackAndPad(t *testing.T) {
	batch := must(Stack(Tensor[int]{}, []Tensor[int]{{[]int{1, 2}, []int{2}}, {[]int{3, 4}, []int{2}}}))
	equal(t, "two vectors", batch, "{[1 2 3 4] [2 2]}")
	again := must(Stack(batch, []Tensor[int]{{[]int{5, 6}, []int{1, 2}}}))
	equal(t, "one matrix", again, "{[5 6] [1 1 2]}")
	equal(t, "Stack uses the memory of dst", &again.Data[0] == &batch.Data[0], true)
	equal(t, "numbers", must(Stack(Tensor[int]{}, []Tensor[int]{{[]int{5}, nil}, {[]int{6}, nil}})), "{[5 6] [2]}")
	two := Tensor[int]{[]int{1, 2}, []int{2}}
	for _, other := range []Tensor[int]{{[]int{1}, []int{1}}, {[]int{1, 2, 3}, []int{3}}, {[]int{1, 2}, []int{2, 1}}, {[]int{1}, []int{2}}} {
		saysAll(t, errorOf(Stack(Tensor[int]{}, []Tensor[int]{two, other})), "sample 1", "shape [2]", fmt.Sprint(other.Shape))
	}
	saysAll(t, errorOf(Stack(Tensor[int]{}, []Tensor[int]{{[]int{1, 2, 3}, []int{2}}})), "sample 0", "shape [2]", "3 elements")
	saysAll(t, errorOf(Stack(Tensor[int]{}, nil)), "no samples")
	pad := Pad(-1)
	ragged := must(pad(Ragged[int]{}, [][]int{{1}, {2, 3, 4}, {}}))
	equal(t, "three", ragged, "{{[1 -1 -1 2 3 4 -1 -1 -1] [3 3]} [1 3 0]}")
	equal(t, "one, in used memory", must(pad(ragged, [][]int{{7, 8}})), "{{[7 8] [1 2]} [2]}")
	equal(t, "empty ones", must(pad(ragged, [][]int{{}, {}})), "{{[] [2 0]} [0 0]}")
}

// TestRecycle checks that batches are built in memory that was given back, or that a batch left when all of it was dropped.
func TestRecycle(t *testing.T) {
	memory := map[*int]bool{}
	for _, workers := range []int{0, 3} {
		clear(memory)
		table := must(Rows(Tensor[int]{upTo(200), []int{100, 2}}))
		loader := must(New(table, Stack[int], Options{BatchSize: 5, Workers: workers}))
		var all, kept [][]int
		for batch := range loader.Epoch(t.Context(), 0) {
			memory[&batch.Data[0]] = true
			if all = append(all, slices.Clone(batch.Data)); len(all)%5 == 1 {
				kept = append(kept, batch.Data)
			} else {
				loader.Recycle(batch)
			}
		}
		equal(t, "batches", slices.Concat(all...), upTo(200))
		for i, batch := range kept {
			equal(t, "a batch that was kept", batch, all[5*i])
		}
		if most := 4 + workers*2 + 2; len(memory) > most {
			t.Errorf("%d batches in %d places, want at most %d", len(all), len(memory), most)
		}
	}
	loader := newLoader(t, failing(3, 1), Options{OnError: dropBad})
	clear(memory)
	for batch := range loader.Epoch(t.Context(), 0) {
		memory[&batch[0]] = true
		loader.Recycle(batch)
	}
	equal(t, "places of batches between empty ones", len(memory), 1)
}

// worker.go: look-ahead, order, time, and every way to stop.

// TestLookAhead checks that nothing is loaded before the range, and then exactly the window while the loop has a batch.
func TestLookAhead(t *testing.T) {
	for _, test := range []struct{ workers, prefetch, window int }{{0, 0, 0}, {1, 2, 2}, {2, 2, 4}, {2, 1, 2}, {3, 4, 12}, {2, 0, 4}} {
		for _, unordered := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				sampler := sampler{50, "counted", func(int) func(int) int { return func(pos int) int { asked.Add(1); return pos } }}
				loader := newLoader(t, numbers(50), Options{Sampler: sampler, Workers: test.workers, Prefetch: test.prefetch, Unordered: unordered})
				seq := loader.Epoch(t.Context(), 0)
				synctest.Wait()
				equal(t, "asked for before the range", asked.Load(), 0)
				taken := 0
				for range seq {
					taken++
					synctest.Wait() // everything that was asked for is loaded now
					equal(t, fmt.Sprintf("%+v: asked for with batch %d in hand", test, taken), asked.Load(), min(50, taken+test.window))
				}
			})
		}
	}
}

// TestStuckBatch checks that while batch 0 does not come, at most window batches are loaded. Out of order it takes up one
// place, and the others come. When it comes, or fails, all come.
func TestStuckBatch(t *testing.T) {
	for unordered, want := range map[bool]string{
		false: fmt.Sprint([]int{}, "3 1", append([]int{-1}, upTo(20)[1:]...)),
		true:  fmt.Sprint(upTo(20)[1:], "19 1", []int{-1}),
	} {
		synctest.Test(t, func(t *testing.T) {
			data, early, late := &probe{n: 20, bad: []int{0}, takes: once(time.Hour)}, []int{}, []int{}
			start, stuck := time.Now(), make(chan string, 1)
			time.AfterFunc(time.Minute, func() {
				loading := data.running.Load()
				stuck <- fmt.Sprint(data.begun.Load()-loading, loading)
			})
			for batch, err := range newLoader(t, data, Options{Workers: 2, Unordered: unordered}).Epoch(t.Context(), 0) {
				if err != nil {
					batch = []int{-1}
				}
				if time.Since(start) < time.Hour {
					early = append(early, batch...)
				} else {
					late = append(late, batch...)
				}
			}
			equal(t, "delivered, loaded and loading while batch 0 is stuck; delivered then", fmt.Sprint(early, <-stuck, late), want)
		})
	}
}

// TestLoopsDoNotMeet checks that loops over one loader do not disturb each other, or wait for each other's OnError.
func TestLoopsDoNotMeet(t *testing.T) {
	eachWorkers(t, []int{0, 2}, func(t *testing.T, workers int) {
		loader := newLoader(t, failing(9, 8), Options{BatchSize: 2, Workers: workers, OnError: func(*SampleError) error {
			time.Sleep(time.Hour)
			return nil
		}})
		start := time.Now()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for epoch := range 10 {
					var got []int
					for batch := range loader.Epoch(t.Context(), epoch) {
						got = append(got, batch...)
						loader.Recycle(batch)
					}
					equal(t, "one loop's samples", got, upTo(8))
				}
			})
		}
		all.Wait()
		equal(t, "time", time.Since(start), 10*time.Hour)
	})
}

// TestCancelWhileWaiting checks that a loop ends as soon as its context, with its cause, and without a question to OnError.
func TestCancelWhileWaiting(t *testing.T) {
	eachWorkers(t, []int{0, 2}, func(t *testing.T, workers int) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a minute is over"))
		defer cancel()
		start, at, questions := time.Now(), Cursor{Epoch: 2}, 0
		loader := newLoader(t, &probe{n: 10, takes: always(time.Hour)}, Options{Workers: workers, OnError: func(*SampleError) error { questions++; return nil }})
		equal(t, "outcome", outcomes(loader.Run(ctx, &at)), "[error a minute is over]")
		equal(t, "time", time.Since(start), time.Minute)
		equal(t, "cursor", at, Cursor{Epoch: 2})
		equal(t, "OnError calls", questions, 0)
		equal(t, "again", outcomes(loader.Run(ctx, &at)), "[error a minute is over]")
		equal(t, "Batch", errorOf(loader.Batch(ctx, 0, 0)), "a minute is over")
	})
}

// TestUserCodeThatDies checks that a panic in any user code, and in a worker a Goexit, fails its batch and nothing else.
func TestUserCodeThatDies(t *testing.T) {
	goexit := "runtime.Goexit was called"
	for name, die := range map[string]func(){"panic: ouch": func() { panic("ouch") }, "panic: EOF": func() { panic(io.EOF) }, goexit: runtime.Goexit} {
		at := func(bad int) func(int) int {
			return func(i int) int {
				if i == bad {
					die()
				}
				return i
			}
		}
		get := Func(6, func(_ context.Context, i int) (int, error) { return at(2)(i), nil })
		collate := func(dst []int, samples []int) ([]int, error) {
			at(2)(samples[0])
			return List(dst, samples)
		}
		order := sampler{6, "dying", func(int) func(int) int { return at(2) }}
		batchSampler := batchSampler{3, "dying", func(int) func(int) []int {
			return func(k int) []int { return []int{2 * at(1)(k), 2*k + 1} }
		}}
		noOrder := sampler{4, "dead", func(int) func(int) int { die(); return nil }}
		inBatch1 := "[[0 1] error dataloader: epoch 2, batch 1: " + name + " [4 5]]"
		all := []loading{
			{"Get", get, nil, Options{BatchSize: 2}, "[[0 1] error dataloader: epoch 2, batch 1, sample 2: " + name + " [4 5]]"},
			{"collate", numbers(6), collate, Options{BatchSize: 2}, inBatch1},
			{"sampler", numbers(6), nil, Options{BatchSize: 2, Sampler: order}, inBatch1},
			{"batch sampler", numbers(6), nil, Options{BatchSampler: batchSampler}, inBatch1},
		}
		least := 1 // without workers a Goexit ends the caller
		if name != goexit {
			least = 0
			all = append(all, []loading{ // OnError and Order run in the caller's goroutine; a Goexit in Get ends the whole batch
				{"dropped", get, nil, Options{BatchSize: 2, OnError: dropBad}, "[[0 1] [3] [4 5]]"},
				{"OnError", failing(6, 2), nil, Options{BatchSize: 2, OnError: func(*SampleError) error { die(); return nil }},
					"[[0 1] error dataloader: epoch 2, batch 1, sample 2: OnError: " + name + " [4 5]]"},
				{"Order", numbers(6), nil, Options{BatchSize: 2, Sampler: noOrder},
					"[error dataloader: epoch 2, batch 0: " + name + " error dataloader: epoch 2, batch 1: " + name + "]"},
			}...)
		}
		for _, l := range all {
			l.check(t, least)
			for _, err := range l.loader(3, 0).Epoch(t.Context(), 0) {
				var p *PanicError
				if errors.As(err, &p) && !bytes.Contains(p.Stack, []byte("TestUserCodeThatDies")) {
					t.Errorf("%s: the stack does not show where: %s", l.name, p.Stack)
				}
				if err != nil && errors.Is(err, io.EOF) != (name == "panic: EOF") {
					t.Errorf("%s: %v is not the value of the panic", l.name, err)
				}
			}
		}
	}
}

// TestAllocations checks that with List and Recycle a batch of an epoch under way costs no allocation.
func TestAllocations(t *testing.T) {
	for workers := range 3 {
		loader := newLoader(t, numbers(4000), Options{BatchSize: 4, Shuffle: true, Workers: workers})
		each := testing.AllocsPerRun(5, func() {
			for batch := range loader.Epoch(t.Context(), 0) {
				loader.Recycle(batch)
			}
		})
		if each > 150 { // of the epoch, and of the memory for the first batches
			t.Errorf("%d workers: an epoch of 1000 batches has %v allocations", workers, each)
		}
	}
}

// dataloader.go: first the classic notebook's tests, by its names.

// testNotebook loads the notebook's data: 20 samples of 2×3×5 numbers, with labels of which each occurs twice, and a tenth of
// a second to fetch one. Each sample comes once, with its own label, in order unless shuffled, and in time.
func testNotebook(t *testing.T, opts Options) {
	synctest.Test(t, func(t *testing.T) {
		const n, each = 20, 100 * time.Millisecond
		random := rand.New(rand.NewPCG(0, 0))
		images, labels := Tensor[float64]{make([]float64, n*30), []int{n, 2, 3, 5}}, make(Slice[int], n)
		for j := range images.Data {
			images.Data[j] = random.NormFloat64()
		}
		for i := range labels {
			labels[i] = i * 7 % (n / 2)
		}
		type sample = Pair[Tensor[float64], int]
		slow := Transform(must(Pairs(must(Rows(images)), labels)), func(_ context.Context, s sample) (sample, error) {
			time.Sleep(each)
			return s, nil
		})
		size, start, found := max(opts.BatchSize, 1), time.Now(), []int{}
		for _, batch := range batches(t, must(New(slow, CollatePair(Stack[float64], List[int]), opts)), 0) {
			equal(t, "shape", batch.First.Shape, []int{size, 2, 3, 5})
			for j, label := range batch.Second {
				i := slices.Index(images.Data, batch.First.Data[j*30]) / 30
				equal(t, "sample", batch.First.Data[j*30:(j+1)*30], images.Data[i*30:(i+1)*30])
				equal(t, "label of its own sample", label, labels[i])
				found = append(found, i)
			}
		}
		rounds := (n/size + max(opts.Workers, 1) - 1) / max(opts.Workers, 1)
		equal(t, "time", time.Since(start), time.Duration(rounds*size)*each)
		equal(t, "in order", slices.IsSorted(found), !opts.Shuffle)
		equal(t, "found", sorted(found), upTo(n))
	})
}

func TestSequential(t *testing.T)             { testNotebook(t, Options{}) }
func TestSequentialBatch(t *testing.T)        { testNotebook(t, Options{BatchSize: 2}) }
func TestSequentialWorkers(t *testing.T)      { testNotebook(t, Options{Workers: 4}) }
func TestSequentialBatchWorkers(t *testing.T) { testNotebook(t, Options{BatchSize: 2, Workers: 2}) }
func TestShuffle(t *testing.T)                { testNotebook(t, Options{Shuffle: true}) }
func TestShuffleBatch(t *testing.T)           { testNotebook(t, Options{Shuffle: true, BatchSize: 2}) }
func TestShuffleWorkers(t *testing.T)         { testNotebook(t, Options{Shuffle: true, Workers: 4}) }
func TestShuffleBatchWorkers(t *testing.T) {
	testNotebook(t, Options{Shuffle: true, BatchSize: 2, Workers: 4})
}

// TestPartialWorkers checks that however a loop is left, at whatever batch, the calls of Get that are under way are waited
// for, and no other begins, not even for a batch that has begun. A Get that honours its context delays nothing.
func TestPartialWorkers(t *testing.T) {
	for _, way := range []string{"break", "panic", "Goexit", "cancel"} {
		eachWorkers(t, []int{0, 1, 4}, func(t *testing.T, workers int) {
			for stop := range 12 {
				leave(t, way, stop, workers, false)
				leave(t, way, stop, workers, true)
			}
		})
	}
}

// leave leaves a loop at a batch. If deaf, Get does not look at its context.
func leave(t *testing.T, way string, stop, workers int, deaf bool) {
	data, enough := &probe{n: 40, takes: always(time.Second), deaf: deaf}, errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var left time.Time
	var begun, running int64
	var errs []error
	body := func() (more bool) {
		synctest.Wait()
		left, begun, running = time.Now(), data.begun.Load(), data.running.Load()
		if stop == 0 {
			equal(t, "calls of Get during the loop", running, workers)
		}
		switch way {
		case "panic":
			panic("of the loop body")
		case "Goexit":
			runtime.Goexit()
		case "cancel":
			cancel(enough)
		}
		return way != "break"
	}
	var loop sync.WaitGroup
	loop.Go(func() {
		defer func() {
			if r := recover(); r != nil && r != "of the loop body" {
				panic(r)
			}
			equal(t, way+": Gets still running, Gets begun since, whether leaving took time",
				fmt.Sprint(data.running.Load(), data.begun.Load()-begun, time.Since(left) > 0), fmt.Sprint(0, 0, deaf && running > 0))
		}()
		n := 0
		for _, err := range newLoader(t, data, Options{Workers: workers, BatchSize: 3}).Epoch(ctx, 0) {
			if err != nil {
				errs = append(errs, err)
			} else if n == stop && !body() {
				break
			}
			n++
		}
	})
	loop.Wait()
	if way == "cancel" && (len(errs) != 1 || errs[0] != enough) {
		t.Fatalf("after cancel: %v, want %v once", errs, enough)
	}
}

// TestError is the notebook's test of a data set that has no samples to give: every batch is an error.
func TestError(t *testing.T) {
	data, want := Func(41, func(context.Context, int) (int, error) { return 0, errors.New("not implemented") }), []string{}
	for k := range 21 {
		want = append(want, fmt.Sprintf("error dataloader: epoch 2, batch %d, sample %d: not implemented", k, 2*k))
	}
	loading{"no samples", data, nil, Options{BatchSize: 2}, fmt.Sprint(want)}.check(t, 0)
}

// The loader's conformance: what PyTorch's own tests and its behaviour say.

// TestSamplerOrderIsBatchOrder checks that a sampler's order is the order of the batches. (In one Go peer it never was.)
func TestSamplerOrderIsBatchOrder(t *testing.T) {
	own := OrderFunc(3, func(epoch int) []int { return []int{epoch, 1, 1} })
	data := &probe{n: 50, takes: jitter(1)}
	for _, test := range []struct {
		opts Options
		want Sampler
	}{
		{Options{}, Sequential(50)},
		{Options{Shuffle: true, Seed: 42}, Random(50, 42)},
		{Options{Sampler: TorchRandom(50, 3)}, TorchRandom(50, 3)},
		{Options{Sampler: RandomWithReplacement(50, 60, 3)}, RandomWithReplacement(50, 60, 3)},
		{Options{Sampler: own}, own},
	} {
		for epoch := range 4 {
			equal(t, fmt.Sprintf("%+v, epoch %d", test, epoch), samples(t, newLoader(t, data, test.opts), epoch), positions(test.want, epoch))
		}
		test.opts.BatchSize = 7
		loading{"order", data, nil, test.opts, fmt.Sprint(slices.Collect(slices.Chunk(positions(test.want, 2), 7)))}.check(t, 0)
	}
	for _, l := range []loading{
		{"batches", nil, nil, Options{BatchSampler: fixedBatches{{0, 1}, {2, 3, 4}, {2}, {7, 8, 9}}}, "[[0 1] [2 3 4] [2] [7 8 9]]"},
		{"batches of a sampler, dropping", nil, nil, Options{BatchSampler: Batches(Sequential(10), 3, true)}, "[[0 1 2] [3 4 5] [6 7 8]]"},
		{"no batches", nil, nil, Options{BatchSampler: Batches(Sequential(0), 2, false)}, "[]"},
		{"resized", nil, nil, Options{BatchSize: 2, Sampler: Resize(Sequential(3), 5)}, "[[1 2] [0 1] [2]]"},
	} {
		l.data = data
		l.check(t, 0)
	}
}

// The loader's errors.

// TestFailures checks that what fails comes as an error at its position, and the rest as if nothing had happened. GetBatch is
// never asked for no samples, or for an index outside.
func TestFailures(t *testing.T) {
	at, outside := "error dataloader: epoch 2, batch ", "is outside the data set, which has 3 samples"
	length := "OrderFunc: the order of epoch 2 has 4 positions, must have 3"
	fails := func([]int, []int) ([]int, error) { return nil, errBad }
	eof := Func(3, func(context.Context, int) (int, error) { return 0, io.EOF })
	short := OrderFunc(3, func(epoch int) []int { return make([]int, 2+epoch) })
	dies := sampler{3, "dying", func(int) func(int) int {
		return func(pos int) int {
			if pos == 1 {
				panic("ouch")
			}
			return pos
		}
	}}
	getBatch := func(err error, answer ...int) Dataset[int] { // if no answer, the indices
		return batchGetter[int]{3, func(_ context.Context, indices []int) ([]int, error) {
			if len(indices) == 0 {
				return nil, errors.New("asked for nothing")
			}
			if len(answer) > 0 {
				return answer, err
			}
			return indices, err
		}}
	}
	for _, l := range []loading{
		{"a bad sample", failing(10, 3), nil, Options{BatchSize: 2}, "[[0 1] " + at + "1, sample 3: bad sample [4 5] [6 7] [8 9]]"},
		{"behind a slow one", &probe{n: 3, bad: []int{1}, takes: once(time.Second)}, nil, Options{}, "[[0] " + at + "1, sample 1: bad sample [2]]"},
		{"bad ones dropped", failing(8, 0, 2, 3, 7), nil, Options{BatchSize: 2, OnError: dropBad}, "[[1] [4 5] [6]]"},
		{"the end of a file", eof, nil, Options{BatchSize: 2}, "[" + at + "0, sample 0: EOF " + at + "1, sample 2: EOF]"},
		{"collate", numbers(2), fails, Options{}, "[" + at + "0: collating 1 samples [0]: bad sample " + at + "1: collating 1 samples [1]: bad sample]"},
		{"collate, dropping", failing(3, 1), fails, Options{BatchSize: 3, OnError: dropBad}, "[" + at + "0: collating 2 samples [0 2]: bad sample]"},
		{"collate, more", numbers(20), fails, Options{BatchSize: 20}, "[" + at + "0: collating 20 samples [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]: bad sample]"},
		{"too small an index", &probe{n: 3}, nil, Options{Sampler: fixed(0, -2, 1), OnError: dropBad}, "[[0] " + at + "1: the sampler: index -2 " + outside + " [1]]"},
		{"index too large", &probe{n: 3}, nil, Options{Sampler: fixed(0, 3, 1)}, "[[0] " + at + "1: the sampler: index 3 " + outside + " [1]]"},
		{"no index", numbers(3), nil, Options{BatchSampler: fixedBatches{{0}, {}, {2}}}, "[[0] " + at + "1: the sampler gave no index [2]]"},
		{"short order", numbers(3), nil, Options{BatchSize: 2, Sampler: short}, "[" + at + "0: panic: " + length + " " + at + "1: panic: " + length + "]"},
		{"a sampler that panics after a bad sample", failing(3, 0), nil, Options{Sampler: dies}, "[" + at + "0, sample 0: bad sample " + at + "1: panic: ouch [2]]"},
		{"GetBatch", getBatch(nil), nil, Options{BatchSize: 2, Sampler: fixed(2, 0, 0)}, "[[2 0] [0]]"},
		{"GetBatch of a subset", must(Subset(getBatch(nil), []int{2, 1, 0})), nil, Options{BatchSize: 2}, "[[2 1] [0]]"},
		{"GetBatch, index too large", getBatch(nil), nil, Options{BatchSize: 2, Sampler: fixed(1, 3, 2), OnError: dropBad}, "[" + at + "0: the sampler: index 3 " + outside + " [2]]"},
		{"GetBatch fails", getBatch(errBad), nil, Options{BatchSize: 2}, "[" + at + "0: bad sample " + at + "1: bad sample]"},
		{"GetBatch, OnError not asked", getBatch(io.EOF), nil, Options{BatchSize: 3, OnError: dropBad}, "[" + at + "0: EOF]"},
		{"GetBatch, too few", getBatch(nil, 1), nil, Options{BatchSize: 3}, "[" + at + "0: GetBatch returned 1 samples for 3 indices]"},
		{"GetBatch, too many", getBatch(nil, 1, 2, 3, 4), nil, Options{BatchSize: 3}, "[" + at + "0: GetBatch returned 4 samples for 3 indices]"},
	} {
		l.check(t, 0)
	}
	equal(t, "the order of epoch 1", batches(t, newLoader(t, numbers(3), Options{Sampler: short}), 1), "[[0] [0] [0]]")
}

// TestOnError checks that bad samples are dropped from their batches, or fail them, as OnError says. OnError hears of them in
// the order of the batches, and no more of a batch that it has failed. A batch of which nothing is left is not collated, but
// traced. The cursor stays before a failed batch, which a resume tries again, until the next success.
func TestOnError(t *testing.T) {
	eachWorkers(t, []int{0, 1, 4}, func(t *testing.T, workers int) {
		var got, heard, traced []string
		var collated atomic.Int64
		budget := 4
		collate := func(dst, samples []int) ([]int, error) {
			if collated.Add(1); samples[0] == 15 {
				return nil, errors.New("collate")
			}
			return List(dst, samples)
		}
		data := &probe{n: 24, bad: []int{0, 6, 7, 8, 12, 13, 19}}
		loader := must(New(data, collate, Options{BatchSize: 3, Workers: workers,
			Trace: func(tm Timing) { traced = append(traced, fmt.Sprint(tm.Batch, ":", tm.Samples, tm.Dropped)) },
			OnError: func(e *SampleError) error {
				heard = append(heard, fmt.Sprint(e.Batch, ":", e.Index))
				if budget--; budget == -1 {
					return fmt.Errorf("more than 4 bad samples: %w", e)
				} else if budget < 0 {
					return errors.New("enough")
				}
				return nil
			}}))
		var at, failed Cursor
		for batch, err := range loader.Run(t.Context(), &at) {
			if got = append(got, fmt.Sprint(at.Pos), outcomes(one(batch, err))[0]); err != nil {
				failed = throughJSON(t, at)
			}
		}
		equal(t, "positions and outcomes", got, "[3 [1 2] 6 [3 4 5] 12 [9 10 11] "+
			"12 error more than 4 bad samples: dataloader: epoch 0, batch 4, sample 12: bad sample "+
			"12 error dataloader: epoch 0, batch 5: collating 3 samples [15 16 17]: collate "+
			"12 error dataloader: epoch 0, batch 6, sample 19: OnError: enough 24 [21 22 23]]")
		equal(t, "in the end", at, Cursor{Epoch: 1})
		equal(t, "heard", heard, "[0:0 2:6 2:7 2:8 4:12 6:19]")
		equal(t, "traced", traced, "[0:2 1 1:3 0 2:0 3 3:3 0 4:0 0 5:0 0 6:0 0 7:3 0]")
		equal(t, "collated", collated.Load(), 7)
		budget = 3
		saysAll(t, errorOf(loader.Batch(t.Context(), 0, 2)), "batch 2", "all samples were dropped")
		data.bad = nil
		equal(t, "healed", collect(t, newLoader(t, data, Options{BatchSize: 3}).Run(t.Context(), &failed)), "[[12 13 14] [15 16 17] [18 19 20] [21 22 23]]")
	})
}

// TestTrace checks the numbers, times and waits of each batch, of a resumed epoch with samples dropped. Batch is not traced.
func TestTrace(t *testing.T) {
	eachWorkers(t, []int{0, 1, 2}, func(t *testing.T, workers int) {
		var timings []Timing
		loader := newLoader(t, &probe{n: 12, bad: []int{2, 4, 5}, takes: always(time.Second)}, Options{BatchSize: 2, Workers: workers, OnError: dropBad,
			Trace: func(tm Timing) { timings = append(timings, tm) }})
		start := time.Now()
		var sizes []int
		for batch := range loader.Run(t.Context(), &Cursor{Epoch: 3, Pos: 2, State: map[string]string{"by": "Sequential(12)"}}) {
			sizes = append(sizes, len(batch))
			time.Sleep(time.Second)
		}
		equal(t, "samples", sizes, "[1 2 2 2]")
		var waited, dropped []int
		for k, tm := range timings {
			equal(t, "epoch and batch", []int{tm.Epoch, tm.Batch}, []int{3, 1 + k})
			dropped = append(dropped, tm.Dropped)
			waited = append(waited, int(tm.Wait/time.Second))
			if tm.Worker < -1 || tm.Worker >= workers || workers > 0 && tm.Worker < 0 {
				t.Errorf("worker %d of %d", tm.Worker, workers)
			}
			if tm.Start.Before(tm.Sent) || tm.Received.Before(tm.Done) || tm.Done.Sub(tm.Start) != 2*time.Second || tm.Sent.Before(start) {
				t.Errorf("%+v", tm)
			}
		}
		equal(t, "dropped", dropped, "[1 2 0 0 0]")
		equal(t, "waited", waited, map[int]string{0: "[2 2 2 2 2]", 1: "[2 1 2 1 1]", 2: "[2 0 1 0 0]"}[workers])
		must(loader.Batch(t.Context(), 3, 5))
		equal(t, "traced with Batch", len(timings), 5)
	})
}

// The loader's cursors.

// TestResumeExhaustive checks every small length, batch size, shard, tail and number of workers, and batch samplers, whose
// batches are dealt out whole: what comes is what should, and a resume anywhere, by any workers, neither loses nor repeats.
func TestResumeExhaustive(t *testing.T) {
	for n := range 11 {
		for _, shard := range []Shard{{0, 0}, {0, 1}, {0, 2}, {1, 2}, {0, 3}, {1, 3}, {2, 3}} {
			for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
				for o := range 8 {
					opts := Options{BatchSize: 1 + o/2, DropLast: o%2 == 1, Shuffle: true, Seed: 7, Shard: shard, Tail: tail}
					if opts.DropLast && opts.BatchSize > n && n > 0 {
						continue // refused, since there would be no batch
					}
					want := fmt.Sprint(expect(positions(Random(n, 7), 2), 0, opts))
					for workers := range 4 {
						loading{"exhaustive", numbers(n), nil, opts, want}.checkWith(t, workers, 0, (workers+o+n)%4)
					}
				}
				opts, want := Options{BatchSampler: Batches(Random(3*n, 7), 3, false), Shard: shard, Tail: tail}, [][]int{}
				for _, k := range expect(upTo(n), 0, Options{Shard: shard, Tail: tail}) {
					want = append(want, opts.BatchSampler.Batches(2)(k[0]))
				}
				loading{"dealt", numbers(3 * n), nil, opts, fmt.Sprint(want)}.check(t, 0)
			}
		}
	}
}

// TestUnorderedResume checks that after random stops, in order and out of it, every batch comes exactly once.
func TestUnorderedResume(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			data := &probe{n: 30 + random.IntN(60), takes: jitter(seed)}
			data.bad = slices.DeleteFunc(upTo(data.n), func(i int) bool { return i%7 != 3 })
			opts := Options{BatchSize: 1 + random.IntN(3), Shuffle: true, Seed: seed, Shard: Shard{random.IntN(2), 2}, Tail: UnevenTail}
			if seed%2 == 1 {
				opts.OnError = dropBad
			}
			want, got := outcomes(newLoader(t, data, opts).Epoch(t.Context(), 1)), []string{}
			at := Cursor{Epoch: 1}
			for tries := 0; at.Epoch == 1 && tries < 1000; tries++ {
				opts.Workers, opts.Unordered = random.IntN(5), random.IntN(3) > 0
				stop, pos := random.IntN(9), at.Pos
				for batch, err := range newLoader(t, data, opts).Run(t.Context(), &at) {
					outcome := outcomes(one(batch, err))[0]
					if err == nil || !slices.Contains(got, outcome) { // what failed just before the stop is tried again
						got = append(got, outcome)
					}
					if at.Pos < pos {
						t.Fatalf("pos %d after %d", at.Pos, pos)
					}
					pos = at.Pos
					if stop--; stop < 0 {
						break
					}
				}
				if random.IntN(2) == 0 {
					at = throughJSON(t, at)
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			equal(t, "outcomes", got, want)
		})
	}
}

// TestCursorRefused checks that a cursor of another order, or a damaged one, is refused with the reason, and left alone.
func TestCursorRefused(t *testing.T) {
	base := Options{Shuffle: true, Seed: 1, BatchSize: 2}
	var at Cursor
	for range newLoader(t, numbers(20), base).Run(t.Context(), &at) {
		break
	}
	done := func(spans string) Cursor { // of an unordered loop, with these steps done ahead
		return fromJSON(t, `{"pos":2,"state":{"by":"Random(20, seed 1)","seed":1,"done":`+spans+`,"shard":{"Index":0,"Count":1},"size":2}}`)
	}
	equal(t, "a good one", len(collect(t, newLoader(t, numbers(20), base).Run(t.Context(), ptr(done("[[1,3],[5,9]]"))))), 3)
	for _, c := range []struct {
		n    int
		opts Options
		at   Cursor
		want string
	}{
		{20, Options{Shuffle: true, Seed: 2, BatchSize: 2}, at, "epoch 0, pos 2 … Random(20, seed 1) … Random(20, seed 2)"},
		{21, base, at, "Random(20, seed 1) … Random(21, seed 1)"},
		{20, Options{Seed: 1, BatchSize: 2}, at, "Random(20, seed 1) … Sequential(20)"},
		{20, Options{BatchSampler: make(fixedBatches, 20)}, at, "Random(20, seed 1) … dataloader.fixedBatches(20)"}, // has no String
		{20, Options{BatchSampler: Batches(Random(20, 1), 2, false)}, at, "Batches(Random(20, seed 1), 2)"},
		{20, Options{BatchSize: 2, Sampler: Random(20, 1)}, at, "Options.Seed 1 … Options.Seed 0"},
		{20, base, Cursor{Pos: 4}, "another stream … pos 4"},
		{20, base, Cursor{Pos: 4, State: "here"}, "does not fit … pos 4"},
		{20, base, Cursor{Pos: 21, State: at.State}, "pos 21 … at most 20"},
		{20, base, Cursor{Epoch: -1}, "epoch -1 … must not be negative"},
		{20, base, Cursor{Pos: -1, State: at.State}, "pos -1 … must not be negative"},
		{20, Options{Shuffle: true, Seed: 1, BatchSize: 2, Shard: Shard{0, 2}}, done("[[1,2]]"), "out of order … {0 1} … {0 2}"},
		{20, Options{Shuffle: true, Seed: 1, BatchSize: 3}, done("[[1,2]]"), "out of order … batches of 2 … batches of 3"},
		{20, base, done("[[5,10]]"), "damaged … steps of 9"},
		{20, base, done("[[0,2]]"), "damaged … [0 2]"}, // touches the mark
		{20, base, done("[[1,2],[2,3]]"), "damaged … [1 2] [2 3]"},
		{20, base, done("[[5,4]]"), "damaged … [5 4]"},
	} {
		for _, at := range []Cursor{c.at, throughJSON(t, c.at)} {
			before := at
			got := outcomes(newLoader(t, numbers(c.n), c.opts).Run(t.Context(), &at))
			equal(t, c.want+": pairs", len(got), 1)
			saysAll(t, errors.New(got[0]), strings.Split("error dataloader: … "+c.want, " … ")...)
			equal(t, c.want+": the cursor", at, before)
		}
	}
	loader := newLoader(t, numbers(4), Options{})
	saysAll(t, errorOf(loader.Batch(t.Context(), -1, 0)), "epoch -1")
	for _, k := range []int{-1, 4} {
		saysAll(t, errorOf(loader.Batch(t.Context(), 0, k)), fmt.Sprint("batch ", k), "4 batches")
	}
}

// FuzzCursor checks that arbitrary bytes as a cursor never panic, hang or repeat a batch.
func FuzzCursor(f *testing.F) {
	f.Add([]byte(`{"epoch":1,"pos":4,"state":{"by":"Random(20, seed 1)","seed":1}}`))
	f.Add([]byte(`{"epoch":1,"pos":0,"state":{"by":"Random(20, seed 1)","seed":1,"done":[[1,3],[5,6]],"shard":{"Index":0,"Count":1},"size":2}}`))
	f.Add([]byte(`{"epoch":1,"pos":4,"state":{"by":"Random(20, seed 1)","seed":1,"done":[[1,9223372036854775807]],"shard":{"Index":0,"Count":1},"size":2}}`))
	f.Add([]byte(`{"epoch":-1,"pos":1e99,"state":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var saved Cursor
		if json.Unmarshal(data, &saved) != nil {
			return
		}
		for _, workers := range []int{0, 2} {
			seen, at := map[int]bool{}, saved
			for batch, err := range newLoader(t, numbers(20), Options{BatchSize: 2, Shuffle: true, Seed: 1, Workers: workers, Unordered: true}).Run(t.Context(), &at) {
				for _, i := range batch {
					if seen[i] {
						t.Fatalf("%s: sample %d comes twice", data, i)
					}
					seen[i] = true
				}
				if err != nil && len(seen) > 0 {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestCursorLoad checks that a State is the same before and after JSON, with every integer exact, and shares no memory.
func TestCursorLoad(t *testing.T) {
	var at Cursor
	for range newLoader(t, numbers(3), Options{}).Run(t.Context(), &at) {
		before := at
		equal(t, "a cursor can be compared with itself", before == at, true)
	}
	type state struct {
		Big   int64
		Huge  uint64
		Inner []Cursor
	}
	made := state{math.MinInt64 + 1, math.MaxUint64 - 1, []Cursor{{1, 2, map[string]int64{"a": 1<<62 + 1}}, {}}}
	c := Cursor{Epoch: 1, Pos: math.MaxInt - 2, State: made}
	want := fmt.Sprint(c)
	for _, c := range []Cursor{c, throughJSON(t, c), throughJSON(t, throughJSON(t, c))} {
		var got state
		inner := map[string]int64{}
		equal(t, "error", c.Load(&got), nil)
		equal(t, "error of the inner cursor", got.Inner[0].Load(&inner), nil)
		got.Inner[0].State, c.State = inner, got
		equal(t, "a loaded cursor", c, want)
		got.Inner[1].Pos = 9
	}
	equal(t, "no memory is shared", made.Inner[1].Pos, 0)
	equal(t, "JSON", string(must(json.Marshal(Cursor{Epoch: 3, Pos: 7744}))), `{"epoch":3,"pos":7744}`)
	equal(t, "a null state", fromJSON(t, `{"epoch":3,"pos":0,"state":null}`), Cursor{Epoch: 3})
	if err := json.Unmarshal([]byte(`{"epoch":4,"pos":"x"}`), &at); err == nil || at != (Cursor{Epoch: 1}) {
		t.Errorf("after JSON that is no cursor: %v, %v", at, err)
	}
	saysAll(t, Cursor{Epoch: 3, Pos: 4, State: "x"}.Load(new(int)), "epoch 3, pos 4", "does not fit")
}

// TestBadOptions checks that options that make no sense are refused, with the field, its value and what is allowed.
func TestBadOptions(t *testing.T) {
	some, none := numbers(3), Dataset[int](nil)
	loader := func(opts Options) error { return errorOf(New(some, List[int], opts)) }
	refused(t, []refusal{
		{errorOf(New(none, List[int], Options{})), "data set is nil"},
		{errorOf(New(some, (Collate[int, []int])(nil), Options{})), "Collate is nil"},
		{errorOf(New(&probe{n: -5}, List[int], Options{})), "length is -5"},
		{loader(Options{BatchSize: -1}), "Options.BatchSize is -1 … positive"},
		{loader(Options{Workers: -1}), "Options.Workers is -1 … not be negative"},
		{loader(Options{Workers: 1, Prefetch: -2}), "Options.Prefetch is -2 … positive"},
		{loader(Options{Prefetch: 4}), "Options.Prefetch is 4 without workers … set Workers"},
		{loader(Options{Workers: math.MaxInt, Prefetch: 3}), "Options.Workers × Prefetch … × 3 … less than 2^31"},
		{loader(Options{Sampler: Sequential(3), Shuffle: true}), "Options.Sampler excludes Shuffle"},
		{loader(Options{BatchSampler: fixedBatches{}, BatchSize: 1}), "Options.BatchSampler excludes BatchSize (1)"},
		{loader(Options{BatchSampler: fixedBatches{}, Shuffle: true}), "Options.BatchSampler excludes … Shuffle (true)"},
		{loader(Options{BatchSampler: fixedBatches{}, Sampler: Sequential(3)}), "Options.BatchSampler excludes … Sampler (true)"},
		{loader(Options{BatchSampler: fixedBatches{}, DropLast: true}), "Options.BatchSampler excludes … DropLast (true)"},
		{loader(Options{Shard: Shard{3, 3}}), "Options.Shard … Index: 3 … Count: 3 … 0 to 2"},
		{loader(Options{Shard: Shard{-1, 3}}), "Options.Shard … Index: -1 … 0 to 2"},
		{loader(Options{Shard: Shard{1, 0}}), "Options.Shard … Index: 1 … set Count"},
		{loader(Options{Shard: Shard{0, 1<<20 + 1}}), "Options.Shard … Count: 1048577 … must be 0 to 1048576"},
		{loader(Options{Shard: Shard{0, -1}}), "Options.Shard … Count: -1 … must be 0 to"},
		{loader(Options{BatchSize: 4, DropLast: true}), "Options.DropLast leaves no batch: BatchSize is 4, and there are 3 samples"},
		{loader(Options{Tail: 7}), "Options.Tail is 7 … UnevenTail"},
		{loader(Options{Tail: -1}), "Options.Tail is -1"},
		{loader(Options{Sampler: sampler{n: -3}}), "dataloader.sampler is -3 … must be 0 to"},
	})
}
