package play

// The pictures of the README: what four loaders do with the same batches.

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite timeline.txt and timeline.svg")

// TestTimeline draws what four loaders do with the same twelve batches, of
// which batch 2 is slow, from their Timings in fake time: as text, and as the
// picture of the README.
func TestTimeline(t *testing.T) {
	const column = 10 * time.Millisecond // of the text
	times := "Loading a batch takes 40 or 50 ms, but batch 2 takes 190 ms. Training takes 10 ms."
	names := " Batches 10 and 11 are a and b."
	text := times + "\nA column is 10 ms." + names +
		" Dashes: no task, because the window is full.\n"
	pic := new(svg)
	pic.legend(times + names)
	larger := newScenario()
	larger.prefetch = 4
	for _, c := range []struct {
		title                         string
		workers, unordered, at, slots int
		notes                         map[string]string
	}{
		{"Workers: 0, load and train in turn", 0, 0, -1, 0, nil},
		{"Workers: 1, load while training", 1, 0, -1, 0, nil},
		{"Workers: 3, Unordered: true, out of order", 3, 1, -1, 0, map[string]string{
			"worker 0": "window 6 = 3 workers × Prefetch 2",
			"queue":    "ready, while the loop trains",
			"train":    "an order that depends on timing",
		}},
		{"Workers: 3, in order", 3, 0, 135, 7, map[string]string{
			"worker 0": "window full: no task until batch 2 is handed over",
			"worker 1": "window 6 = 3 workers × Prefetch 2; with window 12 also " +
				larger.time(larger.run(t).end),
			"queue":    "ready, while the loop trains",
			"ready[0]": "the cache: batch k waits for its turn in slot k % 7",
			"ready[1]": "batches 1 and 8 never wait in the cache",
			"ready[2]": "not ready: the loop waits for batch 2",
			"train":    "at 190 ms 10 batches are left, 10 ms each; order costs 40 ms",
		}},
	} {
		s := newScenario()
		s.workers, s.unordered, s.at = c.workers, c.unordered, c.at
		run := s.run(t)
		if run.err != nil {
			t.Fatalf("%s: %v", c.title, run.err)
		}
		title, lanes := c.title+": "+run.took(), run.lanes(c.slots)
		text += "\n" + title + "\n"
		moments := run.moments()
		for _, m := range moments {
			if m.marked {
				text += strings.Repeat(" ", 10+c.at/10) + "|  " + m.note + "\n"
			}
		}
		if c.at < 0 {
			moments = nil
		}
		for i, l := range lanes {
			lanes[i].note = c.notes[l.name]
			delete(c.notes, l.name) // once
			columns := []byte(strings.Repeat(".", int(run.end/column)))
			for _, b := range l.bars {
				for i := b.from / column; i < b.to/column; i++ {
					columns[i] = b.sign()[0]
				}
			}
			text += strings.TrimRight(fmt.Sprintf("%-9s %s  %s", l.name, columns, lanes[i].note),
				" ") + "\n"
		}
		axis := ""
		for x := 0; x <= int(run.end/column); x += 10 {
			axis += fmt.Sprintf("%-10d", 10*x)
		}
		text += "ms        " + strings.TrimRight(axis, " ") + "\n"
		pic.panel(title, run, lanes, moments)
	}
	goldenFile(t, "../timeline.txt", []byte(text))
	title := "What four loaders do with the same twelve batches, of which batch 2 is slow"
	goldenFile(t, "../timeline.svg", pic.bytes(title))
}

// goldenFile compares data with a file, which -update rewrites.
func goldenFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(data, want) {
		t.Errorf("%s is not what it was; go test ./testdata/play -update writes it", name)
	}
}

// An svg is a picture that is written from top to bottom. The class of an
// element is its colour, light and dark.
type svg struct {
	body   strings.Builder
	height int
}

const svgWidth = 760

func (p *svg) add(format string, args ...any) {
	fmt.Fprintf(&p.body, format, args...)
	p.body.WriteByte('\n')
}

// legend says what the bars of a timeline mean.
func (p *svg) legend(text string) {
	p.add(`<text x="8" y="20">%s</text>`, text)
	kinds := []string{"load: loading", "wait: ready, waiting", "train: training", "slow: batch 2",
		"dashed: window full"}
	for i, kind := range kinds {
		class, name, _ := strings.Cut(kind, ": ")
		p.add(`<rect class="%s" x="%d" y="30" width="24" height="14" rx="2"/>`, class, 8+140*i)
		p.add(`<text x="%d" y="41">%s</text>`, 38+140*i, name)
	}
	p.height = 56
}

// panel draws lanes, the time, and the moments, if there are any: the pointer
// moves the line.
func (p *svg) panel(title string, run *played, lanes []lane, moments []moment) {
	const left, row = 76, 18
	x := func(d time.Duration) int { return left + int(d*8/(10*time.Millisecond)) }
	p.add(`<text font-weight="600" x="8" y="%d">%s</text>`, p.height+16, title)
	p.height += 22
	top := p.height
	if len(moments) > 0 {
		top += row
	}
	bottom := top + row*len(lanes)
	for _, tick := range run.ticks() {
		p.add(`<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`, x(tick), top, x(tick),
			bottom+2)
		p.add(`<text class="tick" x="%d" y="%d">%d</text>`, x(tick), bottom+14, tick/run.units(1))
	}
	p.add(`<text x="8" y="%d">%s</text>`, bottom+13, run.unit)
	for i, l := range lanes {
		y := top + i*row
		p.add(`<text x="8" y="%d">%s</text>`, y+13, l.name)
		if l.note != "" {
			p.add(`<text class="note" x="%d" y="%d">%s</text>`, x(run.end)+12, y+13, l.note)
		}
		for _, b := range l.bars {
			from, width := x(b.from), x(b.to)-x(b.from)-1
			if b.class == "dashed" {
				p.add(`<rect class="dashed" x="%d.5" y="%d.5" width="%d" height="13" rx="2"/>`,
					from, y+2, width-1)
				continue
			}
			p.add(`<rect class="%s" x="%d" y="%d" width="%d" height="14" rx="2"/>`,
				b.class, from, y+2, width)
			p.add(`<text class="on-%s" x="%d.5" y="%d">%s</text>`, b.class, from+width/2, y+13,
				b.sign())
		}
	}
	p.moments(moments, x, p.height, bottom)
	p.height = bottom + row + 8
}

// moments draws a line for each moment, and its note. One of them is visible:
// that under the pointer or, where there is none, the one that is marked.
func (p *svg) moments(moments []moment, x func(time.Duration) int, top, bottom int) {
	if len(moments) == 0 {
		return
	}
	p.add(`<style>
.moments:hover .frame { visibility: hidden; }
.moments .moment:hover + .frame { visibility: visible; }
</style>
<g class="moments">`)
	for _, m := range moments {
		from, to, visibility := x(m.from), x(m.to), "hidden"
		if m.marked {
			visibility = "visible"
		}
		p.add(`<rect class="moment" fill-opacity="0" x="%d" y="%d" width="%d" height="%d"/>`,
			from, top, to-from, bottom-top)
		p.add(`<g class="frame" visibility="%s" pointer-events="none">`, visibility)
		p.add(`<text class="note" font-size="11" x="%d" y="%d">%s</text>`, x(0), top+13, m.note)
		middle := (from + to) / 2
		p.add(`<line class="mark" x1="%d.5" y1="%d" x2="%d.5" y2="%d"/></g>`, middle, top+18,
			middle, bottom)
	}
	p.add("</g>")
}

// A paint is the colour of a class, light and dark, and what else an element of
// the class has in an svg.
type paint struct{ class, attribute, light, dark, more string }

// palette is the paints of all pictures.
func palette() []paint {
	const small = ` font-size="11" text-anchor="middle"`
	return []paint{
		{"page", "fill", "#ffffff", "#0d1117", ""},
		{"text", "fill", "#1f2328", "#e6edf3",
			` font-family="ui-sans-serif, system-ui, sans-serif" font-size="12"`},
		{"note", "fill", "#59636e", "#9198a1", ""},
		{"tick", "fill", "#59636e", "#9198a1", small},
		{"grid", "stroke", "#d1d9e0", "#30363d", ""},
		{"mark", "stroke", "#cf222e", "#ff7b72", ""},
		{"dashed", "stroke", "#59636e", "#9198a1", ` fill="none" stroke-dasharray="3 2"`},
		{"load-line", "stroke", "#2a78d6", "#58a6ff", ` fill="none" stroke-width="2"`},
		{"slow-line", "stroke", "#c2571a", "#f0883e", ` fill="none" stroke-width="2"`},
		{"load", "fill", "#2a78d6", "#2a78d6", ""},
		{"wait", "fill", "#b9d3f2", "#1c3d66", ""},
		{"train", "fill", "#5d6670", "#8b949e", ""},
		{"slow", "fill", "#c2571a", "#db6d28", ""},
		{"slow-wait", "fill", "#f0c3a5", "#5c2e12", ""},
		{"bad", "fill", "#cf222e", "#ff7b72", ""},
		{"on-load", "fill", "#ffffff", "#ffffff", small},
		{"on-wait", "fill", "#1f2328", "#e6edf3", small},
		{"on-train", "fill", "#ffffff", "#0d1117", small},
		{"on-slow", "fill", "#ffffff", "#0d1117", small},
		{"on-slow-wait", "fill", "#1f2328", "#e6edf3", small},
		{"on-bad", "fill", "#ffffff", "#0d1117", small},
	}
}

// bytes ends the picture. The colours for a light page are attributes, because
// some programs that convert pictures ignore styles. The colours for a dark
// page are a style, which overrides the attributes.
func (p *svg) bytes(title string) []byte {
	var light []string
	var dark strings.Builder
	for _, c := range palette() {
		class := fmt.Sprintf("class=%q", c.class)
		light = append(light, class, fmt.Sprintf("%s %s=%q%s", class, c.attribute, c.light, c.more))
		fmt.Fprintf(&dark, ".%s { %s: %s; }\n", c.class, c.attribute, c.dark)
	}
	whole := fmt.Sprintf(`<svg class="text" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">
<title>%s</title>
<style>
@media (prefers-color-scheme: dark) {
%s}
</style>
<rect class="page" width="100%%" height="100%%"/>
%s</svg>
`, svgWidth, p.height, title, dark.String(), p.body.String())
	return []byte(strings.NewReplacer(light...).Replace(whole))
}

// paletteCSS is the palette for a page, in variables.
func paletteCSS() string {
	var light, dark, classes strings.Builder
	for _, c := range palette() {
		fmt.Fprintf(&light, " --%s: %s;", c.class, c.light)
		fmt.Fprintf(&dark, " --%s: %s;", c.class, c.dark)
		if on, isText := strings.CutPrefix(c.class, "on-"); isText {
			fmt.Fprintf(&classes, ".%s { background: var(--%s); color: var(--%s); }\n", on, on,
				c.class)
		}
	}
	return fmt.Sprintf(":root { color-scheme: light dark;%s }\n"+
		"@media (prefers-color-scheme: dark) { :root {%s } }\n"+
		"body { background: var(--page); color: var(--text); }\n.note { color: var(--note); }\n%s",
		light.String(), dark.String(), classes.String())
}
