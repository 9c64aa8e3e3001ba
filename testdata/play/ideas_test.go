package play

// The pictures of the lesson: one for each idea that is hard to say in words.

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"dataloader"
)

// cell is the width of a box in these pictures.
const cell = 44

// box draws a box in a column, with a label of the box's class.
func (p *svg) box(column, y int, class, label string) {
	x := 100 + cell*column
	if class == "dashed" {
		p.add(`<rect class="dashed" x="%d.5" y="%d.5" width="%d" height="19" rx="2"/>`, x, y, cell-7)
		p.add(`<text class="on-wait" x="%d" y="%d">%s</text>`, x+cell/2-3, y+14, label)
		return
	}
	p.add(`<rect class="%s" x="%d" y="%d" width="%d" height="20" rx="2"/>`, class, x, y, cell-6)
	p.add(`<text class="on-%s" x="%d" y="%d">%s</text>`, class, x+cell/2-3, y+14, label)
}

// say writes a line of text at the left, or a note at a column.
func (p *svg) say(class string, column, y int, format string, args ...any) {
	x := 8
	if column >= 0 {
		x = 100 + cell*column
	}
	p.add(`<text class="%s" x="%d" y="%d">%s</text>`, class, x, y, fmt.Sprintf(format, args...))
}

// TestIdeas draws the pictures of the lesson.
func TestIdeas(t *testing.T) {
	for name, draw := range map[string]func() []byte{
		"batch": drawBatch, "ranks": drawRanks, "lowwater": drawLowWater,
	} {
		goldenFile(t, "../"+name+".svg", draw())
	}
}

// drawBatch shows how a data set, a sampler and a collate make batches.
func drawBatch() []byte {
	const n, size = 10, 4
	p := new(svg)
	order := dataloader.Random(n, 1).Order(0)
	p.say("text", -1, 36, "data set")
	p.say("text", -1, 126, "sampler")
	p.say("text", -1, 192, "collate")
	p.say("note", 0, 14, "Get(i) is sample i, at any time")
	p.say("note", 0, 160, "position of the epoch: the order is a function of epoch and position")
	for i := range n {
		p.box(i, 22, "wait", fmt.Sprint(i))
	}
	for pos := range n {
		p.add(`<line class="load-line" x1="%d" y1="44" x2="%d" y2="110"/>`, 119+cell*order(pos),
			119+cell*pos)
		p.box(pos, 112, "load", fmt.Sprint(order(pos)))
		p.add(`<text class="tick" x="%d" y="145">%d</text>`, 119+cell*pos, pos)
	}
	for pos := 0; pos < n; pos += size {
		k := min(size, n-pos)
		var samples []int
		for i := range k {
			samples = append(samples, order(pos+i))
		}
		p.add(`<rect class="train" x="%d" y="174" width="%d" height="30" rx="2"/>`, 100+cell*pos,
			cell*k-6)
		p.add(`<text class="on-train" x="%d" y="193">batch %d: %v</text>`,
			100+cell*pos+(cell*k-6)/2, pos/size, samples)
	}
	p.height = 214
	return p.bytes("A data set, a sampler and a collate make batches of four")
}

// drawRanks shows what two ranks get of ten samples, and the cursor after a
// step.
func drawRanks() []byte {
	const n, ranks, size = 10, 2, 2
	p := new(svg)
	data := dataloader.Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
	p.say("text", -1, 36, "positions")
	p.say("note", 0, 14, "dealt out in turn: rank 0, rank 1, rank 0, …")
	classes := []string{"load", "slow"}
	for pos := range n {
		p.box(pos, 22, classes[pos%ranks], fmt.Sprint(pos))
	}
	p.add(`<line class="mark" x1="%d.5" y1="18" x2="%d.5" y2="52"/>`, 97+cell*ranks*size,
		97+cell*ranks*size)
	p.say("note", ranks*size, 62, "both ranks' cursors after step 0: pos %d", ranks*size)
	for rank := range ranks {
		y := 80 + 34*rank
		p.say("text", -1, y+14, "rank %d", rank)
		loader, err := dataloader.New(data, dataloader.List[int], dataloader.Options{
			BatchSize: size, Rank: dataloader.Rank{Index: rank, Count: ranks},
		})
		if err != nil {
			panic(err)
		}
		column := 0
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				panic(err)
			}
			for _, pos := range batch {
				p.box(column, y, classes[rank], fmt.Sprint(pos))
				column++
			}
			x := 100 + cell*(column-len(batch))
			p.add(`<rect class="dashed" x="%d.5" y="%d.5" width="%d" height="27" rx="2"/>`, x-4, y-4,
				cell*len(batch)+1)
		}
	}
	p.say("note", 0, 158, "step 0")
	p.say("note", size, 158, "step 1")
	p.say("note", 2*size, 158, "step 2: one sample is left for each")
	p.height = 168
	return p.bytes("Two ranks share ten samples, in batches of two")
}

// drawLowWater shows the cursor of a loader out of order, and its resume.
func drawLowWater() []byte {
	const n, low = 10, 2 // steps; the first that has not been handed over
	handed, inFlight := []int{0, 1, 3, 4, 7}, []int{2, 5, 6}
	p := new(svg)
	p.say("text", -1, 36, "step")
	p.say("text", -1, 116, "a resume")
	for k := range n {
		class := "dashed"
		switch {
		case slices.Contains(handed, k):
			class = "train"
		case slices.Contains(inFlight, k):
			class = "load"
		}
		p.box(k, 22, class, fmt.Sprint(k))
		if !slices.Contains(handed, k) {
			p.box(k, 102, "load", fmt.Sprint(k))
		}
	}
	p.add(`<line class="mark" x1="%d.5" y1="16" x2="%d.5" y2="66"/>`, 97+cell*low, 97+cell*low)
	p.say("note", low, 14, "low-water mark: pos is here")
	for k := low; k < n; k++ { // spans of steps that are done, counted from the mark
		if !slices.Contains(handed, k) {
			continue
		}
		end := k
		for slices.Contains(handed, end) {
			end++
		}
		y := 52
		p.add(`<line class="slow-line" x1="%d" y1="%d" x2="%d" y2="%d"/>`, 100+cell*k, y,
			94+cell*end, y)
		p.say("note", k, y+16, "[%d,%d]", k-low, end-low)
		k = end
	}
	p.say("text", n-2, 68, "done")
	kinds := [][2]string{{"train", "handed over"}, {"load", "in flight, or to be loaded"},
		{"dashed", "not begun"}}
	x := 100
	for _, kind := range kinds {
		p.add(`<rect class="%s" x="%d" y="138" width="24" height="14" rx="2"/>`, kind[0], x)
		p.add(`<text x="%d" y="149">%s</text>`, x+30, kind[1])
		x += 60 + 7*len(kind[1])
	}
	p.height = 162
	return p.bytes("The cursor of a loader out of order: the low-water mark, and what is done beyond it")
}
