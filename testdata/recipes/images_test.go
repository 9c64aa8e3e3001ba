package recipes

// Images, from files to batches.
//
//	Example_imageFolder        a folder for each class
//	Example_imageSizes         images of different sizes
//	Example_exifOrientation    photographs of phones, turned upright
//	Example_imageAugmentation  augment: a random part, mirrored, normalised
//	Example_pixelsDecodedOnce  the fastest: pixels in one file
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line and the path of digits.zip, too.

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	_ "image/png" // for image.Decode
	"io/fs"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"dataloader"
)

// Images in a folder for each class become batches: Folder lists them,
// Transform decodes them, and Stack puts them into one tensor.
func Example_imageFolder() {
	fsys := digits("train") // or os.DirFS("train")
	files, classes, err := dataloader.Folder(fsys, "**/*.png")
	if err != nil {
		log.Fatal(err)
	}
	type labelled = dataloader.Pair[dataloader.Tensor[float32], int]
	images := dataloader.Transform(files, func(ctx context.Context,
		f dataloader.Pair[string, int]) (labelled, error) {
		file, err := fsys.Open(f.First)
		if err != nil {
			return labelled{}, err
		}
		defer file.Close()
		img, _, err := image.Decode(file) // of the formats that are imported, such as image/png
		if err != nil {
			return labelled{}, fmt.Errorf("%s: %w", f.First, err)
		}
		return labelled{First: dataloader.ImageTensor(dataloader.Tensor[float32]{}, img),
			Second: f.Second}, nil
	})
	loader, err := dataloader.New(images, dataloader.CollatePair(dataloader.Stack[float32],
		dataloader.List[int]), dataloader.Options{
		BatchSize: 64, Shuffle: true, Workers: runtime.NumCPU(),
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(classes, batch.First.Shape, len(batch.Second))
		break
	}
	// Output: [0 1 2 3 4 5 6 7 8 9] [64 3 16 16] 64
}

// Images of different sizes: the middle square of each is scaled to 16 × 16, so
// that Stack can make a batch of them. The scaling takes the nearest pixel; for
// photographs put the area or bilinear scaling of your choice in its place.
func Example_imageSizes() {
	photos := dataloader.Func(10, func(_ context.Context, i int) (image.Image, error) {
		return image.NewGray(image.Rect(0, 0, 20+i, 40-2*i)), nil // open and decode
	})
	const size = 16
	squares := dataloader.Transform(photos, func(_ context.Context,
		img image.Image) (dataloader.Tensor[float32], error) {
		b := img.Bounds()
		side := min(b.Dx(), b.Dy())
		left := b.Min.X + (b.Dx()-side)/2
		top := b.Min.Y + (b.Dy()-side)/2
		middle := func(i int) int { return (2*i + 1) * side / (2 * size) } // of scaled pixel i
		scaled := image.NewRGBA(image.Rect(0, 0, size, size))
		for y := range size {
			for x := range size {
				scaled.Set(x, y, img.At(left+middle(x), top+middle(y)))
			}
		}
		return dataloader.ImageTensor(dataloader.Tensor[float32]{}, scaled), nil
	})
	loader, err := dataloader.New(squares, dataloader.Stack[float32],
		dataloader.Options{BatchSize: 4, Shuffle: true, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Shape)
		loader.Recycle(batch)
	}
	// Output:
	// [4 3 16 16]
	// [4 3 16 16]
	// [2 3 16 16]
}

// orientation returns how the photograph in a JPEG file is stored: 1 if it is
// upright, and 2 to 8 as EXIF 2.32 numbers them (tag 0x0112). It looks at the
// segments in front of the picture only. What is damaged counts as upright.
func orientation(file []byte) int {
	rest := file[min(2, len(file)):] // behind the start marker
	for len(rest) >= 4 && rest[0] == 0xff {
		size := int(binary.BigEndian.Uint16(rest[2:])) + 2
		if size < 4 || size > len(rest) {
			break
		}
		segment := rest[4:size]
		if rest[1] == 0xe1 && bytes.HasPrefix(segment, []byte("Exif\x00\x00")) {
			return orientationOf(segment[6:])
		}
		rest = rest[size:]
	}
	return 1
}

// orientationOf finds the tag in the TIFF header and directory of an EXIF
// segment.
func orientationOf(tiff []byte) int {
	var order binary.ByteOrder = binary.BigEndian
	if bytes.HasPrefix(tiff, []byte("II")) {
		order = binary.LittleEndian
	}
	if len(tiff) < 8 {
		return 1
	}
	at := int64(order.Uint32(tiff[4:])) // of the directory
	if at+2 > int64(len(tiff)) {
		return 1
	}
	entries := tiff[at+2:]
	for range order.Uint16(tiff[at:]) {
		if len(entries) < 12 {
			break
		}
		if order.Uint16(entries) == 0x0112 {
			if value := int(order.Uint16(entries[8:])); 1 <= value && value <= 8 {
				return value
			}
		}
		entries = entries[12:]
	}
	return 1
}

// upright turns an image that is stored with an orientation.
func upright(img image.Image, orientation int) image.Image {
	if orientation == 1 {
		return img
	}
	b := img.Bounds()
	w, h := b.Dx(), b.Dy()
	turned := image.NewRGBA(image.Rect(0, 0, w, h))
	if orientation > 4 { // rows become columns
		turned = image.NewRGBA(image.Rect(0, 0, h, w))
	}
	for y := range h {
		for x := range w {
			to := [...]image.Point{
				2: {w - 1 - x, y}, {w - 1 - x, h - 1 - y}, {x, h - 1 - y},
				5: {y, x}, {h - 1 - y, x}, {h - 1 - y, w - 1 - x}, {y, w - 1 - x},
			}[orientation]
			turned.Set(to.X, to.Y, img.At(b.Min.X+x, b.Min.Y+y))
		}
	}
	return turned
}

// Photographs of phones are stored as the sensor saw them, and say in EXIF how
// to turn them; image/jpeg and Decode do not look. Turn them after decoding and
// before ImageTensor: copy orientation, orientationOf and upright. An EXIF in a
// PNG, HEIC or WebP file is not found. upright goes pixel by pixel, so a large
// photograph takes some 0.1 s: store it turned, and scaled down.
func Example_exifOrientation() {
	photo := image.NewGray(image.Rect(0, 0, 16, 8))
	for i := range photo.Pix {
		photo.Pix[i] = uint8(255 * (i % 16 / 8)) // dark on the left, light on the right
	}
	file := withOrientation(photo, 6) // to be turned clockwise
	img, err := dataloader.Decode("jpg", file)
	if err != nil {
		log.Fatal(err)
	}
	turned := upright(img.(image.Image), orientation(file))
	tensor := dataloader.ImageTensor(dataloader.Tensor[float32]{}, turned)
	fmt.Println(tensor.Shape, "from", tensor.Data[0], "at the top to", tensor.Data[15*8], "below")
	// Output: [3 16 8] from 0 at the top to 1 below
}

const imageSide = 224

// The mean and standard deviation of each color in ImageNet.
var colorMean = [3]float32{0.485, 0.456, 0.406}

var colorStd = [3]float32{0.229, 0.224, 0.225}

// normalised[c][v] is the value v of color c, from 0 to 1, minus the mean and
// divided by the standard deviation.
var normalised = func() (table [3][256]float32) {
	for c := range table {
		for v := range table[c] {
			table[c][v] = (float32(v)/255 - colorMean[c]) / colorStd[c]
		}
	}
	return table
}()

// augment writes a sample for training into dst, whose shape is [3 224 224]: a
// part of a photograph, which must lie in its bounds, is scaled by bilinear
// interpolation, mirrored in half of all cases, and normalised. Transparent
// pixels count as black. Scaling to less than half skips pixels, so store large
// photographs smaller. torchvision: RandomResizedCrop, RandomHorizontalFlip,
// ToTensor and Normalize.
//
// JPEG files take a third of the time with libjpeg.go.txt, which decodes only
// the part, and scales large ones. The random numbers stay the same. Each
// goroutine has a Decoder, such as one from a sync.Pool:
//
//	config, err := jpeg.DecodeConfig(bytes.NewReader(data))
//	part := randomPart(rng, image.Rect(0, 0, config.Width, config.Height))
//	photo, _, err := decoder.DecodePart(data, part, imageSide)
//	augment(rng, dst, photo, photo.Bounds())
//
// With NewBatchFunc, dst is the sample's place in the batch, so that Stack
// copies nothing. That saves a seventh of the time with the adapter, and costs
// what a Get has: the Rand of NewBatchFunc is the batch's, one generator for
// the whole batch, so the numbers of a sample depend on the samples before it,
// and a photograph that cannot be decoded fails the batch.
func augment(rng *rand.Rand, dst []float32, photo image.Image, part image.Rectangle) {
	pixels, ok := photo.(*image.RGBA)
	if !ok {
		pixels = image.NewRGBA(part)
		draw.Draw(pixels, part, photo, part.Min, draw.Src)
	}
	pixels = pixels.SubImage(part).(*image.RGBA)
	// between says between which two of n rows the middle of each scaled row
	// lies, and how far from the first; so for columns.
	type place struct {
		first, second int
		share         float32
	}
	between := func(n int) (places [imageSide]place) {
		for i := range places {
			x := min(max((float32(i)+0.5)*float32(n)/imageSide-0.5, 0), float32(n-1))
			places[i] = place{int(x), min(int(x)+1, n-1), x - float32(int(x))}
		}
		return places
	}
	rows, columns := between(part.Dy()), between(part.Dx())
	if rng.IntN(2) == 1 {
		slices.Reverse(columns[:])
	}
	const area = imageSide * imageSide
	red, green, blue := &normalised[0], &normalised[1], &normalised[2]
	line := make([][4]float32, part.Dx()) // of three colors: four are a power of two
	for i, row := range rows {
		above, below := pixels.Pix[row.first*pixels.Stride:], pixels.Pix[row.second*pixels.Stride:]
		for x := range line {
			a, b, mean := above[4*x:][:3], below[4*x:][:3], &line[x]
			mean[0] = blend(red[a[0]], red[b[0]], row.share)
			mean[1] = blend(green[a[1]], green[b[1]], row.share)
			mean[2] = blend(blue[a[2]], blue[b[2]], row.share)
		}
		scaled := dst[i*imageSide:]
		for x, column := range columns {
			a, b := &line[column.first], &line[column.second]
			scaled[x] = blend(a[0], b[0], column.share)
			scaled[area+x] = blend(a[1], b[1], column.share)
			scaled[2*area+x] = blend(a[2], b[2], column.share)
		}
	}
}

// blend returns the mean of a and b, in which b has the given share.
func blend(a, b, share float32) float32 { return a + share*(b-a) }

// randomPart draws a part of r that has 8 % to 100 % of its area, and a ratio
// of width to height from 3/4 to 4/3. If r is very wide or high, it is the
// middle.
func randomPart(rng *rand.Rand, r image.Rectangle) image.Rectangle {
	for range 10 {
		area := float64(r.Dx()*r.Dy()) * (0.08 + 0.92*rng.Float64())
		ratio := math.Pow(4.0/3, 2*rng.Float64()-1) // as often wide as high
		w, h := int(math.Round(math.Sqrt(area*ratio))), int(math.Round(math.Sqrt(area/ratio)))
		if 0 < w && w <= r.Dx() && 0 < h && h <= r.Dy() {
			return image.Rect(0, 0, w, h).Add(r.Min).Add(image.Pt(rng.IntN(r.Dx()-w+1),
				rng.IntN(r.Dy()-h+1)))
		}
	}
	w, h := min(r.Dx(), r.Dy()*4/3), min(r.Dy(), r.Dx()*4/3)
	return image.Rect(0, 0, w, h).Add(r.Min).Add(image.Pt((r.Dx()-w)/2, (r.Dy()-h)/2))
}

// The usual augmentation of photographs for training, which the function
// augment above makes. Rand draws the same parts for any number of workers, and
// others in each epoch. Put in your own photos and numbers. For evaluation crop
// the middle, and do not mirror. Here red is the column, blue the column from
// the right and green the row, so the values of a sample tell where it comes
// from. Copy augment and randomPart, too, and what stands before them:
// imageSide, colorMean, colorStd, normalised and blend.
func Example_imageAugmentation() {
	heights := []int{200, 10}
	// Open and decode a photograph.
	photos := dataloader.Func(len(heights), func(_ context.Context, i int) (image.Image, error) {
		var img draw.Image = image.NewRGBA(image.Rect(0, 0, 250, heights[i]))
		if i == 1 {
			img = image.NewNRGBA(img.Bounds())
		}
		for y := range heights[i] {
			for x := range 250 {
				img.Set(x, y, color.RGBA{uint8(x), uint8(y), uint8(255 - x), 255})
			}
		}
		return img, nil
	})
	type sample = dataloader.Tensor[float32]
	samples := dataloader.Transform(photos, func(ctx context.Context, photo image.Image) (sample, error) {
		rng, dst := dataloader.Rand(ctx), make([]float32, 3*imageSide*imageSide)
		augment(rng, dst, photo, randomPart(rng, photo.Bounds()))
		return sample{Data: dst, Shape: []int{3, imageSide, imageSide}}, nil
	})
	for _, run := range []struct{ epoch, workers int }{{0, 0}, {0, 3}, {1, 3}} {
		opts := dataloader.Options{BatchSize: 2, Seed: 1, Workers: run.workers}
		loader, err := dataloader.New(samples, dataloader.Stack[float32], opts)
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), run.epoch) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("epoch", run.epoch, "workers", run.workers, "shape", batch.Shape)
			for t := range slices.Chunk(batch.Data, 3*imageSide*imageSide) {
				value := func(c, y, x int) float32 {
					v := t[(c*imageSide+y)*imageSide+x]
					return (v*colorStd[c] + colorMean[c]) * 255
				}
				const middle, last = imageSide / 2, imageSide - 1
				fmt.Printf("columns %.1f, %.1f … %.1f, ",
					value(0, 0, 0), value(0, 9, middle), 255-value(2, 9, last))
				fmt.Printf("rows %.1f, %.1f … %.1f\n",
					value(1, 0, 0), value(1, middle, 9), value(1, last, 0))
			}
			loader.Recycle(batch)
		}
	}
	// Output:
	// epoch 0 workers 0 shape [2 3 224 224]
	// columns 221.0, 113.0 … 6.0, rows 5.0, 98.4 … 191.0
	// columns 118.0, 124.0 … 130.0, rows 0.0, 4.5 … 9.0
	// epoch 0 workers 3 shape [2 3 224 224]
	// columns 221.0, 113.0 … 6.0, rows 5.0, 98.4 … 191.0
	// columns 118.0, 124.0 … 130.0, rows 0.0, 4.5 … 9.0
	// epoch 1 workers 3 shape [2 3 224 224]
	// columns 158.0, 108.8 … 60.0, rows 10.0, 67.3 … 124.0
	// columns 118.0, 124.0 … 130.0, rows 0.0, 4.5 … 9.0
}

// Photographs that were decoded once, into one file of pixels: red, green, blue
// and alpha, a byte each, all of one size. An epoch decodes nothing: it takes a
// tenth of the time that image/jpeg takes, and a third of libjpeg-turbo's. But
// the file is some 15 times as large as JPEG files. If it is mapped, it may be
// larger than the memory. augment reads the part that it uses straight from the
// file, and writes the sample straight into its batch. Copy augment, too, with
// all that Example_imageAugmentation needs.
func Example_pixelsDecodedOnce() {
	dir, err := os.MkdirTemp("", "pixels")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train.rgba")
	const width, height, size = 32, 24, 4 * 32 * 24
	var content []byte
	for i := range 5 { // once, from photographs that were scaled to this size
		photo := image.NewRGBA(image.Rect(0, 0, width, height))
		gray := image.NewUniform(color.Gray{uint8(50 * i)})
		draw.Draw(photo, photo.Rect, gray, image.Point{}, draw.Src)
		content = append(content, photo.Pix...)
	}
	if err := os.WriteFile(name, content, 0o666); err != nil {
		log.Fatal(err)
	}

	data, err := os.ReadFile(name) // or map it: mapped in speed_test.go
	if err != nil {
		log.Fatal(err)
	}
	const sample = 3 * imageSide * imageSide
	load := func(
		ctx context.Context, dst dataloader.Tensor[float32], indices []int,
	) (dataloader.Tensor[float32], error) {
		dst.Data = slices.Grow(dst.Data[:0], len(indices)*sample)[:len(indices)*sample]
		dst.Shape = append(dst.Shape[:0], len(indices), 3, imageSide, imageSide)
		for k, i := range indices {
			rect := image.Rect(0, 0, width, height)
			photo := &image.RGBA{Pix: data[i*size:][:size], Stride: 4 * width, Rect: rect}
			part := randomPart(dataloader.Rand(ctx), rect)
			augment(dataloader.Rand(ctx), dst.Data[k*sample:][:sample], photo, part)
		}
		return dst, nil
	}
	if len(data)%size != 0 {
		log.Fatalf("%s has %d bytes, which are no whole photographs", name, len(data))
	}
	opts := dataloader.Options{BatchSize: 3, Shuffle: true, Workers: 2}
	loader, err := dataloader.NewBatchFunc(len(data)/size, load, opts)
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v %.2f\n", batch.Shape, batch.Data[0]) // train
		loader.Recycle(batch)
	}
	// Output:
	// [3 3 224 224] -1.26
	// [2 3 224 224] 0.45
}

// # Fixtures, which the Examples need, and a program does not

// digits returns a folder of digits.zip: "train", from 0/000.png to 9/054.png,
// or "test", from 0/000.png to 9/024.png.
func digits(folder string) fs.FS {
	data, err := os.ReadFile("../digits.zip")
	if err != nil {
		log.Fatal(err)
	}
	files, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		log.Fatal(err)
	}
	fsys, err := fs.Sub(files, folder)
	if err != nil {
		log.Fatal(err)
	}
	return fsys
}

// withOrientation returns a JPEG file with an EXIF segment.
func withOrientation(img image.Image, orientation byte) []byte {
	var file bytes.Buffer
	if err := jpeg.Encode(&file, img, nil); err != nil {
		log.Fatal(err)
	}
	exif := "Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01" + // one entry: the tag, a short, once
		"\x01\x12\x00\x03\x00\x00\x00\x01\x00" + string(orientation) + "\x00\x00\x00\x00\x00\x00"
	segment := binary.BigEndian.AppendUint16([]byte("\xff\xd8\xff\xe1"), uint16(len(exif)+2))
	return slices.Concat(segment, []byte(exif), file.Bytes()[2:])
}
