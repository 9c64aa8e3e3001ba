package play

// A page that draws what a loader does with the settings of its form. The real
// engine runs in fake time:
//
//	go test -v ./testdata/play -play localhost:8080 -timeout 0
//
// The import "dataloader" is the package's path in its own folder. In a copy,
// change it in the three files of this folder.

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"html"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dataloader"
)

var playOn = flag.String("play", "", "the address on which TestPlay serves its page")

// A slider is a number of a scenario that the page asks for.
type slider struct {
	name, label string
	value       *int
	least, most int
}

// sliders are those of s. One from 0 to 1 is a box to tick.
func (s *scenario) sliders() []slider {
	return []slider{
		{"workers", "Workers", &s.workers, 0, 8},
		{"prefetch", "Prefetch", &s.prefetch, 1, 5},
		{"unordered", "Unordered", &s.unordered, 0, 1},
		{"batches", "batches", &s.batches, 1, 40},
		{"load", "loading takes", &s.load, 0, 200},
		{"longer", "odd batches longer by", &s.longer, 0, 200},
		{"slow", "slow batch", &s.slow, -1, 39},
		{"takes", "the slow batch takes", &s.takes, 0, 1000},
		{"train", "training takes", &s.train, 0, 200},
		{"fails", "batch that fails", &s.fails, -1, 39},
		{"leaves", "break after batch", &s.leaves, -1, 39},
		{"deaf", "Get ignores its context", &s.deaf, 0, 1},
		{"at", "the line stands at", &s.at, 0, math.MaxInt32},
	}
}

// scenarioOf returns the scenario that a form has sent. What is missing or no
// number is that of newScenario; what is out of range is clamped.
func scenarioOf(form url.Values) *scenario {
	s := newScenario()
	for _, sl := range s.sliders() {
		n, err := strconv.Atoi(form.Get(sl.name))
		if err == nil {
			*sl.value = min(max(n, sl.least), sl.most)
		}
	}
	if unit := form.Get("unit"); slices.Contains(timeUnits(), unit) {
		s.unit = unit
	}
	return s
}

// timeUnits are the units of a scenario.
func timeUnits() []string { return []string{"ms", "s", "m", "h"} }

// asked returns the names of the sliders that a question is about, from the
// field show, separated by spaces: the others are hidden. The line is always
// shown. Nothing is hidden if there is no such field.
func asked(form url.Values) []string { return strings.Fields(form.Get("show")) }

// A player is a page that plays scenarios, one at a time.
type player struct {
	mu sync.Mutex
	t  *testing.T // for the bubbles, which belong to a test; nothing fails it
}

func (p *player) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := scenarioOf(r.URL.Query())
	p.mu.Lock()
	run := s.run(p.t)
	p.mu.Unlock()
	s.at = min(s.at, int(run.end/s.units(1)))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, pageHead, paletteCSS(), s.form(run, asked(r.URL.Query())), run.figure())
}

// form returns the sliders as a form. If some are asked for, the others are
// hidden fields, and a link shows them.
func (s *scenario) form(run *played, asked []string) string {
	text := new(strings.Builder)
	all := url.Values{}
	if len(asked) > 0 {
		fmt.Fprintf(text, `<input type="hidden" name="show" value="%s">`+"\n",
			html.EscapeString(strings.Join(asked, " ")))
	}
	for _, sl := range s.sliders() {
		all.Set(sl.name, strconv.Itoa(*sl.value))
		if len(asked) > 0 && sl.name != "at" && !slices.Contains(asked, sl.name) {
			if sl.most > 1 || *sl.value == 1 { // a box that is not ticked is not sent
				fmt.Fprintf(text, `<input type="hidden" name="%s" value="%d">`+"\n", sl.name,
					*sl.value)
			}
			continue
		}
		if sl.most == 1 {
			checked := map[int]string{1: " checked"}[*sl.value]
			fmt.Fprintf(text, `<label><input type="checkbox" name="%s" value="1"%s> %s</label>`+
				"\n",
				sl.name, checked, sl.label)
			continue
		}
		step := 1
		if sl.name == "at" {
			text.WriteString(s.unitMenu())
			sl.most = int(run.end / s.units(1))
			step = 1 + sl.most/500
		}
		shown := strconv.Itoa(*sl.value)
		if *sl.value < 0 {
			shown = "none"
		}
		fmt.Fprintf(text, `<label>%s: <output>%s</output>`+
			`<input type="range" name="%s" min="%d" max="%d" step="%d" value="%d"></label>`+"\n",
			sl.label, shown, sl.name, sl.least, sl.most, step, *sl.value)
	}
	if len(asked) > 0 {
		all.Set("unit", s.unit)
		fmt.Fprintf(text, `<a href="/?%s">all settings</a>`+"\n", html.EscapeString(all.Encode()))
	}
	return text.String()
}

// unitMenu returns the choice of a unit, and the button.
func (s *scenario) unitMenu() string {
	text := `<label>times are in <select name="unit">`
	for _, unit := range timeUnits() {
		selected := map[bool]string{true: " selected"}[unit == s.unit]
		text += fmt.Sprintf("<option%s>%s</option>", selected, unit)
	}
	return text + "</select></label>\n<button>play</button>\n"
}

// figure returns the picture of a run, what Stats says, and a table.
func (p *played) figure() string {
	text := new(strings.Builder)
	if p.err != nil {
		fmt.Fprintf(text, "<pre>%s</pre>", html.EscapeString(p.err.Error()))
		return text.String()
	}
	how := fmt.Sprintf("window %d, %s", p.window(),
		[]string{"in order", "out of order"}[p.unordered])
	if p.workers == 0 {
		how = "load and train in turn"
	}
	fmt.Fprintf(text, "<figcaption>Workers: %d, %s: %s</figcaption>\n<div class=\"lanes\">\n",
		p.workers, how, p.took())
	place := func(from, to time.Duration) string {
		percent := func(d time.Duration) float64 {
			return 100 * float64(d) / float64(max(p.end, 1))
		}
		return fmt.Sprintf(`style="left: %.2f%%; width: %.2f%%"`, percent(from), percent(to-from))
	}
	for _, l := range oneQueue(p.lanes(0)) {
		fmt.Fprintf(text, `<div class="lane"><span>%s</span>`, l.name)
		for _, b := range l.bars {
			label := ""
			if b.batch >= 0 {
				label = strconv.Itoa(b.batch)
			}
			// A label that has no room is hidden: digits tells how much it
			// needs.
			fmt.Fprintf(text, `<b class="%s" %s><em class="digits%d">%s</em></b>`, b.class,
				place(b.from, b.to), len(label), label)
		}
		text.WriteString("</div>\n")
	}
	fmt.Fprintf(text, `<div class="lane"><span>%s</span>`, p.unit)
	for _, tick := range p.ticks() {
		fmt.Fprintf(text, `<i %s>%d</i>`, place(tick, tick), tick/p.units(1))
	}
	text.WriteString("</div>\n")
	for _, m := range p.moments() {
		class := map[bool]string{true: " at"}[m.marked]
		fmt.Fprintf(text, `<div class="moment%s" %s></div><p class="note%s">%s</p>`+"\n",
			class, place(m.from, m.to), class, m.note)
	}
	fmt.Fprintf(text, "</div>\n<details><summary>What Stats says</summary><p>%s</p></details>\n",
		html.EscapeString(p.stats.String()))
	text.WriteString("<details><summary>The batches as a table</summary><table>\n" +
		"<tr><th>batch<th>sent<th>begun<th>loaded<th>received<th>done with\n")
	for _, j := range p.journeys {
		fmt.Fprintf(text, "<tr><td>%d", j.batch)
		for _, d := range []time.Duration{j.sent, j.start, j.done, j.received, j.returned} {
			if d == never {
				text.WriteString("<td>–")
			} else {
				fmt.Fprintf(text, "<td>%d", d/p.units(1))
			}
		}
		text.WriteString("\n")
	}
	text.WriteString("</table></details>")
	return text.String()
}

// oneQueue puts the lanes of the queue into one, whose bars say how many
// batches are in the queue.
func oneQueue(lanes []lane) (all []lane) {
	var queued []bar
	var moments []time.Duration
	at := -1
	for _, l := range lanes {
		if l.name != "queue" {
			all = append(all, l)
			continue
		}
		if at < 0 {
			at = len(all)
			all = append(all, lane{name: "in queue"})
		}
		for _, b := range l.bars {
			queued, moments = append(queued, b), append(moments, b.from, b.to)
		}
	}
	slices.Sort(moments)
	moments = slices.Compact(moments)
	for i := 1; i < len(moments); i++ {
		n := 0
		for _, b := range queued {
			if b.from <= moments[i-1] && moments[i] <= b.to {
				n++
			}
		}
		if n > 0 {
			all[at].bars = append(all[at].bars, bar{n, "wait", moments[i-1], moments[i]})
		}
	}
	return all
}

// pageHead is the page: the colours, the form and the figure stand in it.
// Without script the form is sent by its button; with script each change is.
const pageHead = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>What does a loader do?</title>
<style>
%s
body { margin: 1em auto; max-width: 94vw; padding: 0 .6em; }
body { font: clamp(15px, 1.15vw, 24px)/1.4 ui-sans-serif, system-ui, sans-serif; }
h1 { font-size: 1.2em; }
form { display: grid; align-items: end; gap: .6em 1.5em; }
form { grid-template-columns: repeat(auto-fill, minmax(12em, 1fr)); }
input[type=range] { display: block; width: 100%%; margin: 0; }
label:has([name=at]) { grid-column: 1 / -1; }
figure { margin: 1em 0; }
figcaption { font-weight: 600; }
.lanes { position: relative; margin: .4em .8em 0 5em; padding-top: var(--room); --room: 3em; }
@media (max-width: 40em) { .lanes { --room: 6em; } }
.lane { position: relative; height: 1.3em; }
.lane span { position: absolute; left: -5em; }
.lane b { position: absolute; top: 1px; height: 1.4em; min-width: 3px; box-sizing: border-box; }
.lane b { overflow: hidden; border-right: 1px solid var(--page); border-radius: 3px; }
.lane b { text-align: center; line-height: 1.4; }
.lane i { position: absolute; transform: translate(-50%%); width: auto !important; }
button, select { font: inherit; }
.lane i { font-style: normal; font-size: .8em; }
b { font-size: .8em; font-weight: normal; padding: 0 1px; }
.lane b { container-type: inline-size; }
em { font-style: normal; }
@container (max-width: .7em) { .digits1 { display: none; } }
@container (max-width: 1.3em) { .digits2 { display: none; } }
.dashed { border: 1px dashed var(--dashed) !important; }
.bad { z-index: 1; }
.dropped { opacity: .7; --hatch: transparent 0 4px, #8888 4px 8px; }
.dropped { background-image: repeating-linear-gradient(45deg, var(--hatch)); }
.moment { position: absolute; top: var(--room); bottom: 1.3em; }
.note { position: absolute; top: 0; left: -5em; right: -.8em; margin: 0; visibility: hidden; }
.note.at, .moment:hover + .note { visibility: visible; }
.lanes:has(.moment:hover) .note.at:not(:hover + .note) { visibility: hidden; }
.moment.at::after, .moment:hover::after { content: ""; position: absolute; height: 100%%; }
.moment::after { left: 50%%; }
.moment::after { border-left: 2px solid var(--mark); }
.lanes:has(.moment:hover) .moment.at:not(:hover)::after { content: none; }
table { border-spacing: 1em 0; text-align: right; font-variant-numeric: tabular-nums; }
</style>
<h1>What does a loader do?</h1>
<form>
%s
</form>
<p><b class="load">loading</b> <b class="wait">ready, waiting</b> <b class="train">training</b>
<b class="slow">the slow batch</b> <b class="bad">failed</b> <b class="dashed">window full</b>
<b class="load dropped">discarded</b></p>
<figure>
%s
</figure>
<script>
const form = document.forms[0]
let asked = 0
form.oninput = async () => {
	const mine = ++asked, query = '?' + new URLSearchParams(new FormData(form))
	const text = await (await fetch(query)).text()
	if (mine != asked) return // a later change has been answered, or will be
	const page = new DOMParser().parseFromString(text, 'text/html')
	const open = [...document.querySelectorAll('details')].map(d => d.open)
	page.querySelectorAll('details').forEach((d, i) => { d.open = open[i] })
	document.querySelector('figure').replaceWith(page.querySelector('figure'))
	const outputs = page.querySelectorAll('output'), at = page.querySelector('[name=at]')
	document.querySelectorAll('output').forEach((o, i) => { o.value = outputs[i].value })
	form.at.max = at.max
	form.at.step = at.step
	history.replaceState(null, '', query)
}
let playing
form.onsubmit = event => { // the button moves the line, from moment to moment
	event.preventDefault()
	clearInterval(playing)
	let k = 0
	const step = () => {
		const moments = document.querySelectorAll('.moment')
		if (k >= moments.length) return clearInterval(playing)
		document.querySelectorAll('.at').forEach(e => e.classList.remove('at'))
		moments[k].classList.add('at')
		moments[k].nextElementSibling.classList.add('at')
		k++
	}
	step()
	playing = setInterval(step, 400)
}
</script>
</html>
`

// TestPlay asks the page for some scenarios, plays each of them again, and
// checks that the page says what a Get and the body see. With -play it serves
// the page instead:
//
//	go test -v ./testdata/play -play localhost:8080 -timeout 0
func TestPlay(t *testing.T) {
	page := &player{t: t}
	if *playOn != "" {
		listener, err := net.Listen("tcp", *playOn)
		failIf(t, err != nil, "%v", err)
		fmt.Printf("http://%v shows what a loader does; Ctrl-C ends it\n", listener.Addr())
		t.Fatal(http.Serve(listener, page))
	}
	queries := []string{
		"", "workers=0", "workers=1&train=50", "unordered=1", "prefetch=5", "batches=40&workers=8",
		"train=0", "fails=2", "fails=0&slow=0&workers=0", "leaves=3", "leaves=3&deaf=1&unit=h",
		"leaves=0&unordered=1&deaf=1", "unit=m&load=200&takes=1000&at=300", "batches=1",
		"load=1&longer=0&train=0&slow=-1", "fails=1&leaves=0",
	}
	for k := range 4 * 4 * 3 * 2 {
		queries = append(queries, fmt.Sprintf("batches=6&fails=%d&leaves=%d&workers=%d", k%4,
			k/4%4-1, k/16%3)+[]string{"", "&unordered=1"}[k/48])
	}
	lesson := must(os.ReadFile("../lesson.md"))
	for _, url := range regexp.MustCompile(`localhost:8080/\?([\w=&+-]+)`).FindAllSubmatch(lesson,
		-1) {
		queries = append(queries, string(url[1]))
	}
	for _, query := range queries {
		t.Run(cmp.Or(query, "the first page"), func(t *testing.T) {
			form := must(url.ParseQuery(query))
			text := page.ask(query)
			s := scenarioOf(form)
			for name := range form {
				kept := fmt.Sprintf(`name="%s" [^>]*value="%[2]s"|selected>%[2]s`, name,
					form.Get(name))
				shown := regexp.MustCompile(kept).MatchString(text)
				failIf(t, !shown, "%s is not on the page", name)
			}
			checkPage(t, s, text)
		})
	}
	clamped := page.ask("workers=8&batches=1&prefetch=1&slow=39&at=50")
	bad := page.ask("workers=99&batches=-5&prefetch=0&slow=4000&unit=year&at=999999999&train=a")
	equal(t, "what is out of range", bad, clamped)
}

// ask returns the page for a query.
func (p *player) ask(query string) string {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?"+query, nil))
	return w.Body.String()
}

// A sighting is what a Get and the body see of a batch.
type sighting struct{ start, done, received, returned time.Duration }

// checkPage plays a scenario without Trace, and compares what is seen with the
// bars, the notes and the table of a page.
func checkPage(t *testing.T, s *scenario, page string) {
	t.Helper()
	seen := make([]sighting, s.batches)
	for k := range seen {
		seen[k] = sighting{never, never, never, never}
	}
	var end time.Duration
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		data := dataloader.Func(s.batches, func(ctx context.Context, k int) (int, error) {
			seen[k].start = time.Since(begin)
			defer func() { seen[k].done = time.Since(begin) }()
			return s.Get(ctx, k)
		})
		opts := dataloader.Options{Workers: s.workers, Unordered: s.unordered == 1}
		opts.Prefetch = min(s.workers, 1) * s.prefetch
		for batch, err := range must(dataloader.New(data, dataloader.List[int],
			opts)).Epoch(t.Context(), 0) {
			k := s.fails
			if len(batch) == 1 {
				k = batch[0]
			}
			failIf(t, k < 0, "a batch of %v, and the error %v", batch, err)
			seen[k].received = time.Since(begin)
			s.body(err)
			if seen[k].returned = time.Since(begin); k == s.leaves {
				break
			}
		}
		end = time.Since(begin)
	})
	near := func(what string, from, to time.Duration, left, width string) {
		percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(end) }
		x, w := must(strconv.ParseFloat(left, 64)), must(strconv.ParseFloat(width, 64))
		far := math.Abs(x-percent(from))+math.Abs(x+w-percent(min(to, end))) > 0.03
		failIf(t, far, "%s: left %v %%, width %v %%, must be from %v to %v", what, x, w, from, to)
	}
	negative := regexp.MustCompile(`style="[^"]*(left|width): -`).MatchString(page)
	equal(t, "whether a bar has a negative place or width", negative, false)
	loads, trains := 0, 0
	laneOf := regexp.MustCompile(`<div class="lane"><span>(\w+).*`)
	barOf := regexp.MustCompile(`<b class="[\w -]+" style="left: ([\d.]+)%; width: ([\d.]+)%">` +
		`<em class="digits\d">(\d+)</em></b>`)
	for _, lane := range laneOf.FindAllStringSubmatch(page, -1) {
		for _, bar := range barOf.FindAllStringSubmatch(lane[0], -1) {
			k := must(strconv.Atoi(bar[3]))
			switch lane[1] {
			case "load", "worker":
				loads++
				near(fmt.Sprint("loading of ", k), seen[k].start, seen[k].done, bar[1], bar[2])
			case "train":
				trains++
				near(fmt.Sprint("training on ", k), seen[k].received, seen[k].returned, bar[1],
					bar[2])
			}
		}
	}
	cells := func(all ...time.Duration) (text string) {
		for _, d := range all {
			text += "<td>"
			if d == never {
				text += "–"
			} else {
				text += strconv.Itoa(int(d / s.units(1)))
			}
		}
		return text
	}
	begun, trained := 0, 0
	for k, b := range seen {
		row := regexp.MustCompile(fmt.Sprintf("(?m)^<tr><td>%d<td>[^<]+(.*)$", k))
		got, want := row.FindStringSubmatch(page)[1], cells(b.start, b.done, b.received, b.returned)
		equal(t, fmt.Sprint("the row of batch ", k), got, want)
		if b.done-b.start > end/400 {
			begun++
		}
		if b.returned-b.received > end/400 || b.returned < never && k == s.fails {
			trained++
		}
	}
	equal(t, "bars of loading", loads, begun)
	equal(t, "bars of training", trains, trained)
	notes := regexp.MustCompile(`class="note[^>]*>\d+ to (\d+) \w+: recv = (\d+), send = (\d+)([^<]*)`)
	number, inBody := regexp.MustCompile(`\d+`), regexp.MustCompile(`\d+ in the body`)
	for _, note := range notes.FindAllStringSubmatch(page, -1) {
		var to, recv, send int
		must(fmt.Sscan(strings.Join(note[1:4], " "), &to, &recv, &send))
		received := 0
		for _, b := range seen {
			if b.received/s.units(1) < time.Duration(to) {
				received++
			}
		}
		inFlight := number.FindAllString(inBody.ReplaceAllString(note[4], ""), -1)
		equal(t, "batches in flight in "+note[0], len(inFlight), send-recv)
		equal(t, "recv in "+note[0], recv, received)
		failIf(t, recv > send || send > recv+max(1, s.window()), "%s", note[0])
	}
}

// must returns v of a call that cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// equal fails the test if got is not want.
func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// failIf fails the test if something is wrong.
func failIf(t *testing.T, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Fatalf(format, args...)
	}
}
