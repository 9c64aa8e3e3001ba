//go:build ignore

// This program draws testdata/digits.zip, the digits of
// testdata/recipes/digits: 55 images of each digit for training, and 25 for the
// test. Run it in the folder of the package: go run testdata/digits.go
//
// It writes the file only if a pixel differs, because another version of Go may
// compress the same pixels into other bytes.
package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"log"
	"maps"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
)

const file = "testdata/digits.zip"

func main() {
	images, rng := map[string]*image.Gray{}, rand.New(rand.NewPCG(1, 2))
	for digit, font := range digitFonts {
		for i := range 55 + 25 {
			name := fmt.Sprintf("train/%d/%03d.png", digit, i)
			if i >= 55 {
				name = fmt.Sprintf("test/%d/%03d.png", digit, i-55)
			}
			images[name] = drawDigit(font[rng.IntN(len(font))], rng)
		}
	}
	differs := compareDigits(images)
	if differs == nil {
		fmt.Println("the pixels of", file, "are what this program draws")
		return
	}
	var archive bytes.Buffer
	w, encoder := zip.NewWriter(&archive), png.Encoder{CompressionLevel: png.BestCompression}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		stored, err := w.CreateHeader(&zip.FileHeader{Name: name}) // a PNG is compressed already
		if err = errors.Join(err, encoder.Encode(stored, images[name])); err != nil {
			log.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(file, archive.Bytes(), 0o644)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("written again:", differs)
}

// compareDigits says how digits.zip differs from the images. Machines that fuse
// multiplication and addition round less often. That may be the difference
// between 99.4999… and 99.5, hence one level of a pixel, but never two.
func compareDigits(images map[string]*image.Gray) error {
	archive, err := zip.OpenReader(file)
	if err != nil {
		return err
	}
	defer archive.Close()
	if len(archive.File) != len(images) {
		return fmt.Errorf("digits.zip has %d files, want %d", len(archive.File), len(images))
	}
	alike := func(a, b uint8) bool { return max(a, b)-min(a, b) <= 1 }
	for _, f := range archive.File {
		data, err := f.Open()
		if err != nil {
			return err
		}
		img, err := png.Decode(data)
		got, ok := img.(*image.Gray)
		want := images[f.Name]
		if err != nil || !ok || want == nil || got.Rect != want.Rect ||
			!slices.EqualFunc(got.Pix, want.Pix, alike) {
			return fmt.Errorf("%s in digits.zip is not what it was: %T, %v", f.Name, img, err)
		}
	}
	return nil
}

// digitFonts has the ways to write each digit. A way is strokes, a stroke is
// points, and a point is its column, 0 to 7 from the left, and its row, 0 to 9
// from the top. A stroke after "~" is a curve inside the corners of its points.
var digitFonts = [10][]string{
	{"~30 00 09 69 60 30", "~30 10 19 59 50 30, 51 18", "~40 10 03 07 29 49 66 62 40"},
	{"30 39", "12 30 39", "12 30 39, 19 59", "~50 40 29"},
	{"~02 00 60 64 09, 09 69", "00 60 64 05 09 69", "~02 10 60 63 28 09 07 27 59 68"},
	{"~01 10 60 64 24, ~24 64 69 19 08", "00 60 24, ~24 64 69 19 08",
		"~01 00 60 54 14, ~14 75 69 09 07"},
	{"10 06 66, 43 49", "49 40 06 66", "00 04 64, 60 69", "~10 02 06 24 65, ~61 54 49"},
	{"60 10 04, ~04 63 69 09 08", "60 00 04 64 69 09", "~60 10 11 04, ~04 53 65 69 29 07"},
	{"~50 00 09 69 64 04 06", "~41 15 09 69 64 24 06", "~61 60 00 09 69 65 14 06",
		"~30 04 09 59 65 25 18"},
	{"00 60 29", "00 60 29, 15 55", "02 00 60, ~60 34 39", "~01 10 50 60, 60 19, 25 64"},
	{"~34 04 00 60 64 34, ~34 04 09 69 64 34", "~61 50 00 03 66 69 09 06 62 60",
		"~34 14 10 50 54 34, ~34 04 09 69 64 34"},
	{"~62 60 00 05 65 62, 62 69", "~63 60 00 05 65 63, ~62 69 29 08", "~62 50 00 04 35 62, 62 39"},
}

// drawDigit draws a digit as a hand does: off centre, leaning, turned, in any
// size, with any pen and ink, on paper with spots. Points are complex numbers,
// in pixels.
func drawDigit(strokes string, rng *rand.Rand) *image.Gray {
	between := func(low, high float64) float64 { return low + (high-low)*rng.Float64() }
	wide, high := between(0.95, 1.35), between(1, 1.35) // a column and a row
	lean, turn := between(-0.2, 0.3), cmplx.Rect(1, between(-0.1, 0.1))
	centre := complex(between(6.5, 8.5), between(6.5, 8.5))
	pen, ink := between(0.5, 1.1), between(150, 255) // pen is half the width of a stroke
	img := image.NewGray(image.Rect(0, 0, 16, 16))
	for stroke := range strings.SplitSeq(strokes, ", ") {
		points, curved := strings.CutPrefix(stroke, "~")
		var line []complex128
		for p := range strings.FieldsSeq(points) {
			x, y := wide*(float64(p[0]-'0')-3), high*(float64(p[1]-'0')-4.5)
			line = append(line, centre+turn*complex(x-lean*y, y))
		}
		// Cut the corners, as Chaikin does; the ends stay.
		for round := 0; curved && round < 3; round++ {
			cut := line[:1:1]
			for i, b := range line[1:] {
				cut = append(cut, 0.75*line[i]+0.25*b, 0.25*line[i]+0.75*b)
			}
			line = append(cut, line[len(line)-1])
		}
		for i, end := range line[1:] {
			for k := range img.Pix {
				// the pixel and the end of the segment, both from its start
				p, b := complex(float64(k%16), float64(k/16))-line[i], end-line[i]
				along := (real(p)*real(b) + imag(p)*imag(b)) / (real(b)*real(b) + imag(b)*imag(b))
				distance := cmplx.Abs(p - complex(min(max(along, 0), 1), 0)*b)
				inked := ink * min(max(pen-distance+0.5, 0), 1)
				img.Pix[k] = max(img.Pix[k], uint8(math.Round(inked)))
			}
		}
	}
	for range rng.IntN(8) {
		img.Pix[rng.IntN(len(img.Pix))] = uint8(rng.IntN(256))
	}
	return img
}
