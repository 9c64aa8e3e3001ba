// This program trains a model to read digits, interrupts the training in the
// middle of an epoch, and resumes it from a checkpoint with another number of
// workers. Then it trains again without the interruption, and compares the
// weights. Run it in the folder of the package:
//
//	go run ./testdata/recipes/digits
//
// For a training of your own, change open, decode and shift, which make the
// samples, and put your model in the place of model. The loop in train stays.
package main

import (
	"archive/zip"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"log"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"dataloader"
)

const (
	side   = 16 // of an image, in pixels
	epochs = 30
)

func main() {
	log.SetFlags(0)
	name := "testdata/digits.zip"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	archive, err := zip.OpenReader(name)
	if err != nil {
		log.Fatalf("%v\nRun this program in the folder of the package, or with the file's name.", err)
	}
	defer archive.Close()
	images, test := open(archive, "train"), open(archive, "test")

	fmt.Printf("A model learns to read digits from %d images, loaded by 2 workers.\n", images.Len())
	showBatch(newLoader(images, 2))
	var c checkpoint
	fmt.Printf("After 1, 2, 4, 8, 16 and 30 epochs it is tested with %d others:\n", test.Len())
	c.train(images, test, 2, 260)
	fmt.Printf("Interrupted in epoch %d, after %d images. ", c.At.Epoch, c.At.Pos)
	fmt.Printf("The checkpoint has the weights and this cursor:\n%v\n", c.At)
	saved := must(json.Marshal(c)) // a real training writes this to a file

	fmt.Println("Resumed from the checkpoint, with 3 workers:")
	var resumed checkpoint
	if err := json.Unmarshal(saved, &resumed); err != nil {
		log.Fatal(err)
	}
	resumed.train(images, test, 3, -1)

	fmt.Println("Without the interruption, and without workers:")
	var whole checkpoint
	whole.train(images, test, 0, -1)
	fmt.Println("The weights are the same as without the interruption, bit for bit:",
		resumed.Model == whole.Model)

	fmt.Println("Five of the test images, and what the model says they are:")
	whole.Model.show(test)
}

// A digit is an image of the shape [16 16], from 0 for paper to 1 for ink, and
// the digit that it shows.
type digit = dataloader.Pair[dataloader.Tensor[float32], int]

// open returns the digits in a folder of the archive. Each is decoded once, by
// the worker that needs it first.
func open(archive *zip.ReadCloser, folder string) dataloader.Dataset[digit] {
	var files dataloader.Slice[*zip.File]
	for _, f := range archive.File {
		if strings.HasPrefix(f.Name, folder+"/") {
			files = append(files, f)
		}
	}
	return dataloader.Cache(dataloader.Transform(files, decode))
}

// decode makes a digit of a file such as train/7/012.png, which shows a 7.
func decode(_ context.Context, f *zip.File) (d digit, err error) {
	file, err := f.Open()
	if err != nil {
		return d, err
	}
	defer file.Close()
	img, err := png.Decode(file)
	if err != nil {
		return d, fmt.Errorf("%s: %w", f.Name, err)
	}
	gray, ok := img.(*image.Gray)
	if !ok || gray.Rect != image.Rect(0, 0, side, side) {
		return d, fmt.Errorf("%s: %T in %v, want gray pixels, 16 by 16", f.Name, img, img.Bounds())
	}
	d.First.Shape = []int{side, side}
	for _, p := range gray.Pix {
		d.First.Data = append(d.First.Data, float32(p)/255)
	}
	d.Second, err = strconv.Atoi(path.Base(path.Dir(f.Name)))
	return d, err
}

// shift moves an image at random by up to a pixel in each direction. What
// leaves it on one side enters on the other. Rand's numbers belong to the
// sample, whichever worker loads it.
func shift(ctx context.Context, d digit) (digit, error) {
	rng, pixels := dataloader.Rand(ctx), d.First.Data
	k := side*(rng.IntN(3)-1) + rng.IntN(3) - 1
	k = (k + len(pixels)) % len(pixels)
	d.First.Data = slices.Concat(pixels[k:], pixels[:k]) // a copy, because the Cache keeps pixels
	return d, nil
}

// collate makes a batch of digits.
var collate = dataloader.CollatePair(dataloader.Stack[float32], dataloader.List[int])

// A checkpoint is all that train must know of what was trained before.
type checkpoint struct {
	Model model
	At    dataloader.Cursor
	Loss  float64 // the sum over the images of the epoch so far
}

// A batch is images of the shape [32 16 16], and the digits that they show.
type batch = dataloader.Pair[dataloader.Tensor[float32], []int]

// newLoader returns the loader of a training.
func newLoader(images dataloader.Dataset[digit], workers int) *dataloader.DataLoader[batch] {
	shifted := dataloader.Transform(images, shift)
	return must(dataloader.New(shifted, collate, dataloader.Options{
		BatchSize: 32, Shuffle: true, Seed: 1, Workers: workers,
	}))
}

// showBatch prints the first images of the first batch.
func showBatch(loader *dataloader.DataLoader[batch]) {
	first := must(loader.Batch(context.Background(), 0, 0))
	var captions []string
	for _, label := range first.Second[:5] {
		captions = append(captions, fmt.Sprint("a ", label))
	}
	fmt.Printf("Its first batch is a tensor of the shape %v, and begins with these images:\n",
		first.First.Shape)
	draw(first.First.Data, captions)
}

// train continues a training to its last epoch, or until it is interrupted
// after a number of batches.
func (c *checkpoint) train(images, test dataloader.Dataset[digit], workers, batches int) {
	loader := newLoader(images, workers)
	for c.At.Epoch < epochs {
		epoch := c.At.Epoch
		for batch, err := range loader.Run(context.Background(), &c.At) {
			if err != nil {
				log.Fatal(err)
			}
			c.Loss += c.Model.learn(batch.First, batch.Second)
			loader.Recycle(batch)
			if batches--; batches == 0 {
				return
			}
		}
		if done := epoch + 1; done&(done-1) == 0 || done == epochs {
			loss, right := c.Loss/float64(images.Len()), c.Model.recognized(test)
			bar := strings.Repeat("#", right/5)
			fmt.Printf("epoch %2d  loss %.2f  %3d right %s\n", epoch, loss, right, bar)
		}
		c.Loss = 0
	}
}

// A model is a softmax regression: a weight for each digit and pixel.
type model [10][side * side]float64

// predict returns the probability of each digit, and the most probable one.
func (m *model) predict(pixels []float32) (p [10]float64, best int) {
	sum := 0.0
	for d := range p {
		for j, x := range pixels {
			p[d] += m[d][j] * float64(x)
		}
		p[d] = math.Exp(p[d])
		sum += p[d]
	}
	for d := range p {
		p[d] /= sum
	}
	return p, slices.Index(p[:], slices.Max(p[:]))
}

// learn takes a step down the gradient of the cross-entropy for each image of a
// batch, and returns the sum of the losses.
func (m *model) learn(images dataloader.Tensor[float32], labels []int) (loss float64) {
	for i, label := range labels {
		pixels := images.Data[i*side*side:][:side*side]
		p, _ := m.predict(pixels)
		loss -= math.Log(p[label])
		p[label]--
		for d := range p {
			for j, x := range pixels {
				m[d][j] -= 0.01 * p[d] * float64(x)
			}
		}
	}
	return loss
}

// recognized counts the images that the model recognizes.
func (m *model) recognized(test dataloader.Dataset[digit]) (right int) {
	loader := must(dataloader.New(test, collate, dataloader.Options{BatchSize: 32, Workers: 2}))
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		for i, label := range batch.Second {
			if _, best := m.predict(batch.First.Data[i*side*side:][:side*side]); best == label {
				right++
			}
		}
		loader.Recycle(batch)
	}
	return right
}

// show prints every fiftieth image, and what the model says it is.
func (m *model) show(test dataloader.Dataset[digit]) {
	var pixels []float32
	var captions []string
	for i := 4; i < test.Len(); i += 50 {
		d := must(test.Get(context.Background(), i))
		p, best := m.predict(d.First.Data)
		text := fmt.Sprintf("%d, %.0f %% sure", best, 100*p[best])
		if best != d.Second {
			text = fmt.Sprintf("%d, but it is a %d", best, d.Second)
		}
		pixels, captions = append(pixels, d.First.Data...), append(captions, text)
	}
	draw(pixels, captions)
}

// draw prints images side by side, each with a caption below: a line of
// characters shows two rows of pixels.
func draw(pixels []float32, captions []string) {
	blocks := [2][2]string{{" ", "▄"}, {"▀", "█"}} // by the upper and the lower pixel
	var lines [side/2 + 1]string
	for i, caption := range captions {
		for y := range side / 2 {
			rows := pixels[(i*side+2*y)*side:]
			for x := range side {
				lines[y] += blocks[int(rows[x]+0.5)][int(rows[side+x]+0.5)]
			}
			lines[y] += "    "
		}
		lines[side/2] += fmt.Sprintf("%-20s", caption)
	}
	for _, line := range lines {
		fmt.Println(strings.TrimRight(line, " "))
	}
}

// must returns v, or ends the program if there is an error.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
