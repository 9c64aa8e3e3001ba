package recipes

// What the recipes for speed gain. Each row times its own code and a baseline
// in turn, round by round, and reports the median, as in bench_test.go of the
// package:
//
//	go test -run '^$' -bench . ./testdata/recipes

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dataloader"
)

// BenchmarkPacking is what packTexts and Stack cost a token: texts of up to 599
// tokens of 4 bytes, shuffled, in rows of 1,024, in batches of 16. The baseline
// copies as many tokens.
func BenchmarkPacking(b *testing.B) {
	const n = 12000
	tokens := slices.Repeat([]int32{1}, 300*n)
	text := func(_ context.Context, i int) ([]int32, error) { return tokens[299*i:][:i%600], nil }
	rows := packTexts(dataloader.Map(dataloader.Indices(dataloader.Random(n, 0)), 0, text), 1024)
	run := func() {
		for range dataloader.Batch(rows, 16, dataloader.Stack[int32]).Epoch(b.Context(), 0) {
		}
	}
	against(b, "texts", "ns/token", 299*n, "copy", func() { copy(tokens, tokens[n:]) }, run)
}

// BenchmarkImages decodes JPEG files of 500 by 375 pixels, which is ImageNet's
// mean size, and scales them into batches of the shape [32 3 224 224]. With New
// each image becomes a tensor that Stack copies into the batch, with
// NewBatchFunc it is written into the batch. The loop writes into one batch.
// share-% is how much of the loop's time image/jpeg takes: 80 %. With 2 workers
// the loader is 1.9 to 2.1 × a plain loop. The loader adds 3 % to the CPU time
// of an image with New, and less than 1 % with NewBatchFunc. image/jpeg takes 4
// times as long as the recipe augment. With augment, pixels that were decoded
// once come 10 × as fast as JPEG files.
func BenchmarkImages(b *testing.B) {
	const n, size, pixels = 128, 32, 3 * imageSide * imageSide
	files := jpegFiles(16)
	file := func(i int) []byte { return files[i%len(files)] }
	byHand := func(from, to int) {
		batch := make([]float32, size*pixels)
		for i := from; i < to; i++ {
			must(0, decodeTo(batch[i%size*pixels:][:pixels], file(i)))
		}
	}
	loop := func() { byHand(0, n) }
	var photos [n]image.Image
	decode := func() {
		for i := range n {
			photos[i] = must(jpeg.Decode(bytes.NewReader(file(i))))
		}
	}
	b.Run("image-jpeg", func(b *testing.B) {
		whole, part, _ := rounds(b, loop, decode)
		b.ReportMetric(100*median(part)/median(whole), "share-%")
		b.ReportMetric(median(part)/n/1e6, "ms/image")
	})
	rng, sample := rand.New(rand.NewPCG(1, 1)), make([]float32, pixels)
	against(b, "recipe", "ms/image", n, "image-jpeg", decode, func() {
		for _, photo := range photos {
			augment(rng, sample, photo, randomPart(rng, photo.Bounds()))
		}
	})
	against(b, "limit:two-goroutines", "ms/image", n, "loop", loop, func() {
		var both sync.WaitGroup
		both.Go(func() { byHand(0, n/2) })
		both.Go(func() { byHand(n/2, n) })
		both.Wait()
	})
	encoded := dataloader.Func(n, func(_ context.Context, i int) ([]byte, error) {
		return file(i), nil
	})
	decoded := dataloader.Transform(encoded, func(_ context.Context,
		file []byte) (dataloader.Tensor[float32], error) {
		t := dataloader.Tensor[float32]{Data: make([]float32, pixels),
			Shape: []int{3, imageSide, imageSide}}
		return t, decodeTo(t.Data, file)
	})
	fill := func(_ context.Context, dst dataloader.Tensor[float32],
		indices []int) (dataloader.Tensor[float32], error) {
		dst.Data = slices.Grow(dst.Data[:0], len(indices)*pixels)[:len(indices)*pixels]
		dst.Shape = append(dst.Shape[:0], len(indices), 3, imageSide, imageSide)
		for k, i := range indices {
			if err := decodeTo(dst.Data[k*pixels:][:pixels], file(i)); err != nil {
				return dst, err
			}
		}
		return dst, nil
	}
	line := func(name string, run func()) { against(b, name, "ms/image", n, "loop", loop, run) }
	for _, workers := range []int{0, 2} {
		opts := dataloader.Options{BatchSize: size, Shuffle: true, Workers: workers}
		line(fmt.Sprint("New/workers=", workers),
			epochOf(b, decoded, dataloader.Stack[float32], opts))
		run := epochOfLoader(b, must(dataloader.NewBatchFunc(n, fill, opts)))
		line(fmt.Sprint("NewBatchFunc/workers=", workers), run)
	}

	// Random parts of photographs: from files, and from pixels that were
	// decoded once, as in Example_pixelsDecodedOnce.
	decode()
	var flat []byte
	for _, photo := range photos {
		rgba := image.NewRGBA(photo.Bounds())
		draw.Draw(rgba, rgba.Rect, photo, image.Point{}, draw.Src)
		flat = append(flat, rgba.Pix...)
	}
	fromFile := func(i int) image.Image { return must(jpeg.Decode(bytes.NewReader(file(i)))) }
	fromPixels := func(i int) image.Image {
		rect := photos[i].Bounds()
		stride := 4 * rect.Dx()
		return &image.RGBA{Pix: flat[stride*rect.Dy()*i:], Stride: stride, Rect: rect}
	}
	parts := func(workers int, photo func(i int) image.Image) func() {
		load := func(ctx context.Context, dst []float32, indices []int) ([]float32, error) {
			dst = slices.Grow(dst[:0], len(indices)*pixels)[:len(indices)*pixels]
			for k, i := range indices {
				p := photo(i)
				augment(dataloader.Rand(ctx), dst[k*pixels:][:pixels], p,
					randomPart(dataloader.Rand(ctx), p.Bounds()))
			}
			return dst, nil
		}
		opts := dataloader.Options{BatchSize: size, Shuffle: true, Workers: workers}
		return epochOfLoader(b, must(dataloader.NewBatchFunc(n, load, opts)))
	}
	for _, workers := range []int{0, 2} {
		against(b, fmt.Sprint("pixels/workers=", workers), "ms/image", n, "JPEG",
			parts(workers, fromFile), parts(workers, fromPixels))
	}
}

// BenchmarkDecodedBatches makes batches of the shape [32 3 224 224] from a
// shard, as Example_decodedBatches does: a Map decodes whole batches into
// memory that the loop gives back. In the baseline a Map decodes each image
// into a tensor of its own, and Batch stacks them. So that decoding does not
// hide what memory costs, it is a conversion of bytes: on a busy machine
// decoded batches come 2.0 to 2.5 × as fast.
func BenchmarkDecodedBatches(b *testing.B) {
	const n, size, pixels = 512, 32, 3 * imageSide * imageSide
	var entries []string
	for i := range n {
		raw := bytes.Repeat([]byte{byte(i)}, pixels)
		entries = append(entries, fmt.Sprintf("%d.raw=%s", i, raw))
	}
	name := filepath.Join(b.TempDir(), "x.tar")
	must(0, writeShard(name, entries...))
	records := must(dataloader.Tar([]string{name}, dataloader.TarOptions{}))
	convert := func(dst []float32, r dataloader.Record) {
		for i, v := range r.Get("raw") {
			dst[i] = normalised[0][v]
		}
	}
	for _, workers := range []int{1, 2} {
		images := dataloader.Map(records, workers,
			func(_ context.Context, r dataloader.Record) (dataloader.Tensor[float32], error) {
				t := dataloader.Tensor[float32]{
					Data: make([]float32, pixels), Shape: []int{3, imageSide, imageSide},
				}
				convert(t.Data, r)
				return t, nil
			})
		free := make(chan dataloader.Tensor[float32], 8*workers+1)
		decode := func(_ context.Context,
			records []dataloader.Record) (batch dataloader.Tensor[float32], err error) {
			select {
			case batch = <-free:
			default:
				batch.Data = make([]float32, size*pixels)
			}
			batch.Shape = append(batch.Shape[:0], size, 3, imageSide, imageSide)
			for k, r := range records {
				convert(batch.Data[k*pixels:][:pixels], r)
			}
			return batch, nil
		}
		oneByOne := dataloader.Batch(images, size, dataloader.Stack[float32])
		whole := dataloader.Map(dataloader.Batch(records, size,
			dataloader.List[dataloader.Record]), workers, decode)
		against(b, fmt.Sprint("workers=", workers), "µs/image", n, "one-by-one", func() {
			for _, err := range oneByOne.Epoch(b.Context(), 0) {
				must(0, err)
			}
		}, func() {
			for batch, err := range whole.Epoch(b.Context(), 0) {
				must(0, err)
				free <- batch
			}
		})
	}
}

// jpegFiles makes JPEG files of about 50 KB: waves, and noise, which is what
// takes the space.
func jpegFiles(n int) (files [][]byte) {
	rng := rand.New(rand.NewPCG(1, 2))
	for f := range n {
		img := image.NewYCbCr(image.Rect(0, 0, 500, 375), image.YCbCrSubsampleRatio420)
		for i := range img.Y {
			x, y, noise := float64(i%img.YStride), float64(i/img.YStride), float64(rng.IntN(24))
			img.Y[i] = uint8(110 + 80*math.Sin(x/float64(9+f))*math.Cos(y/23) + noise)
		}
		for i := range img.Cb {
			img.Cb[i], img.Cr[i] = uint8(i/img.CStride), uint8(i%img.CStride)
		}
		var file bytes.Buffer
		must(0, jpeg.Encode(&file, img, &jpeg.Options{Quality: 85}))
		files = append(files, file.Bytes())
	}
	return files
}

// decodeTo decodes a JPEG file in colours and scales it to a tensor of the
// shape [3 224 224], of numbers from 0 to 1.
func decodeTo(dst []float32, file []byte) error {
	decoded, err := jpeg.Decode(bytes.NewReader(file))
	if err != nil {
		return err
	}
	img, ok := decoded.(*image.YCbCr)
	if !ok {
		return fmt.Errorf("the image is a %T, not in YCbCr", decoded)
	}
	const area = imageSide * imageSide
	red, green, blue := dst[:area], dst[area:2*area], dst[2*area:3*area] // at first Y, Cb and Cr
	right, bottom := img.Rect.Max.X-1, img.Rect.Max.Y-1
	scale(red, img.Y, img.YStride, right, bottom)
	right, bottom = img.COffset(right, 0), img.COffset(0, bottom)/img.CStride
	scale(green, img.Cb, img.CStride, right, bottom)
	scale(blue, img.Cr, img.CStride, right, bottom)
	for i, y := range red {
		cb, cr := green[i]-128, blue[i]-128
		red[i] = min(max(y+1.402*cr, 0), 255) / 255
		green[i] = min(max(y-0.344136*cb-0.714136*cr, 0), 255) / 255
		blue[i] = min(max(y+1.772*cb, 0), 255) / 255
	}
	return nil
}

// scale writes one plane of an image, whose last column and row are right and
// bottom, as 224 by 224 numbers: each is the bilinear mean of the four pixels
// around its place. The weights are in 1/256.
func scale(dst []float32, src []uint8, stride, right, bottom int) {
	place := func(i, last int) (at, next, weight int) { // of the centre of pixel i of 224
		p := max(((2*i+1)*(last+1)*128)/imageSide-128, 0)
		return p >> 8, min(p>>8+1, last), p & 255
	}
	var columns [imageSide]struct{ at, next, weight int }
	for x := range columns {
		c := &columns[x]
		c.at, c.next, c.weight = place(x, right)
	}
	for y := range imageSide {
		at, next, weight := place(y, bottom)
		above, below, out := src[at*stride:][:right+1], src[next*stride:][:right+1],
			dst[y*imageSide:][:imageSide]
		for x := range columns {
			c := &columns[x]
			top := int(above[c.at])*(256-c.weight) + int(above[c.next])*c.weight
			low := int(below[c.at])*(256-c.weight) + int(below[c.next])*c.weight
			out[x] = float32(top*(256-weight)+low*weight) / (256 * 256)
		}
	}
}

// TestDecodeTo checks the images of BenchmarkImages: where one is twice as wide
// and high, a pixel is the mean of four.
func TestDecodeTo(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 2*imageSide, 2*imageSide))
	for y := range 2 * imageSide {
		for x := range 2 * imageSide {
			img.Set(x, y, color.RGBA{uint8(x / 2), uint8(y / 2), uint8((x + y) / 4), 255})
		}
	}
	var file bytes.Buffer
	must(0, jpeg.Encode(&file, img, &jpeg.Options{Quality: 100}))
	got := make([]float32, 3*imageSide*imageSide)
	must(0, decodeTo(got, file.Bytes()))
	for i, v := range got {
		y, x := i/imageSide%imageSide, i%imageSide
		want := [3]int{x, y, (x + y) / 2}[i/imageSide/imageSide]
		if math.Abs(float64(255*v)-float64(want)) > 4 {
			t.Fatalf("colour %d at %d, %d is %v, want %d", i/imageSide/imageSide, x, y, 255*v, want)
		}
	}
	file.Reset()
	must(0, jpeg.Encode(&file, image.NewGray(img.Rect), nil))
	saysAll(t, decodeTo(got, file.Bytes()), "*image.Gray")
}

// BenchmarkFlatFile reads 20,000 records of 4 KB at random from one file with
// offsets, as in Example_flatFile, in batches of 64. The baseline is a bare
// loop of ReadAt. The loop body reads each record, as a model would. On a busy
// machine the loader is 1.3 to 2.0 × that loop.
func BenchmarkFlatFile(b *testing.B) {
	const n, size = 20000, 4096
	name := filepath.Join(b.TempDir(), "flat.bin")
	must(0, os.WriteFile(name, bytes.Repeat([]byte("flat"), n*size/4), 0o666))
	f, data := must(os.Open(name)), must(mapped(name))
	defer f.Close()
	at := func(i int) int { return i * size }
	get := func(_ context.Context, i int) ([]byte, error) {
		return data[at(i):at(i+1):at(i+1)], nil
	}
	read := func(record []byte) { sink.Add(uint64(bytes.IndexByte(record, 'x'))) }
	order := dataloader.Random(n, 0).Order(0)
	readAt := func() {
		for pos := range n {
			record := make([]byte, size)
			must(f.ReadAt(record, int64(at(order(pos)))))
			read(record)
		}
	}
	for _, workers := range []int{0, 2} {
		opts := dataloader.Options{BatchSize: 64, Shuffle: true, Workers: workers}
		loader := must(dataloader.New(dataloader.Func(n, get), dataloader.List[[]byte], opts))
		against(b, fmt.Sprint("workers=", workers), "ns/record", n, "ReadAt", readAt, func() {
			for batch, err := range loader.Epoch(b.Context(), 0) {
				must(0, err)
				for _, record := range batch {
					read(record)
				}
				loader.Recycle(batch)
			}
		})
	}
}

// against times run, which does n units of work, against a baseline that does
// as many. It reports the time of a unit, as in µs/batch, and, as ×<name of the
// baseline>, how many times as fast as the baseline run is.
func against(b *testing.B, name, unit string, n int, baseline string, base, run func()) {
	b.Run(name, func(b *testing.B) {
		theirs, mine, allocs := rounds(b, base, run)
		ratios := make([]float64, len(mine))
		for i := range mine {
			ratios[i] = theirs[i] / mine[i]
		}
		of, what, _ := strings.Cut(unit, "/")
		b.ReportMetric(median(mine)/float64(n)/float64(must(time.ParseDuration("1"+of))), unit)
		b.ReportMetric(median(ratios), "×"+baseline)
		b.ReportMetric(allocs/float64(n), "allocs/"+what)
	})
}

// rounds runs base and run in turn. It returns how long each round of both
// took, in ns, and how often run allocates.
func rounds(b *testing.B, base, run func()) (theirs, mine []float64, allocs float64) {
	defer runtime.KeepAlive(trainingHeap())
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

// trainingHeap returns memory to be kept alive while something is measured, as
// much as a small training has. The collector runs whenever the heap has
// doubled. So beside the few MB of a benchmark it would run all the time: a
// stream of records of 4 KB took 25 to 50 % longer on two cores, with 25
// collections in an epoch of 20,000 records.
func trainingHeap() []byte {
	heap := make([]byte, 100<<20)
	runtime.GC() // from here on the collector runs at 200 MB
	return heap
}

func median(x []float64) float64 {
	slices.Sort(x)
	return (x[len(x)/2] + x[(len(x)-1)/2]) / 2
}

// epochOf returns a function that goes through one epoch of a loader and gives
// each batch back.
func epochOf[T, B any](b *testing.B, data dataloader.Dataset[T], collate dataloader.Collate[T, B],
	opts dataloader.Options) func() {
	return epochOfLoader(b, must(dataloader.New(data, collate, opts)))
}

// epochOfLoader does the same for a loader.
func epochOfLoader[B any](b *testing.B, loader *dataloader.DataLoader[B]) func() {
	return func() {
		for batch, err := range loader.Epoch(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
			loader.Recycle(batch)
		}
	}
}

// sink keeps results from being optimized away.
var sink atomic.Uint64
