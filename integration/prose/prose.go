// SPDX-License-Identifier: Apache-2.0

// Package prose measures the sentences of comments and documents: their first words, their length, and the colons and
// semicolons inside them.
package prose

import (
	"regexp"
	"strings"
)

// Figures are the counts of one body of text. The zero value has no sentence.
type Figures struct {
	Sentences int
	Words     int
	Openers   int // number of sentences that begin with a word in opener
	Marks     int // number of sentences with a colon or semicolon inside
	Vague     int // number of uses of the words in vague
}

// Add adds the counts of other.
func (f *Figures) Add(other Figures) {
	f.Sentences += other.Sentences
	f.Words += other.Words
	f.Openers += other.Openers
	f.Marks += other.Marks
	f.Vague += other.Vague
}

// OpenerShare returns the share of sentences that begin with a word in opener, in percent.
func (f Figures) OpenerShare() float64 { return f.share(f.Openers) }

// MarkShare returns the share of sentences with an inner colon or semicolon, in percent.
func (f Figures) MarkShare() float64 { return f.share(f.Marks) }

// MeanLength returns the mean number of words in a sentence, or 0.
func (f Figures) MeanLength() float64 { return float64(f.Words) / float64(max(f.Sentences, 1)) }

func (f Figures) share(count int) float64 { return 100 * float64(count) / float64(max(f.Sentences, 1)) }

// minWords is the minimum length of a sentence that counts. Tables have many cells with one or two words.
const minWords = 3

var (
	opener = regexp.MustCompile(`^["“(]*(?:What|Who|Whoever|That|Of)\b`)
	mark   = regexp.MustCompile(`[:;]\s`)
	vague  = regexp.MustCompile(`(?i)\b(?:somebody|nobody|whoever|whatever)\b`)

	// end matches the end of a sentence and the start of the next one.
	end = regexp.MustCompile("[.!?][)\"”]*\\s+(\\S)")
	// short matches abbreviations whose full stop does not end a sentence.
	short = regexp.MustCompile(`(?:\b(?:e\.g|i\.e|cf|vs|etc|al|Sec|No|approx)|\b[A-Z]|\.\.)\.$`)
)

// Measure counts the sentences of paragraphs.
func Measure(paragraphs []string) Figures {
	var f Figures
	for _, p := range paragraphs {
		for _, s := range Sentences(p) {
			f.Add(measure(s))
		}
	}
	return f
}

func measure(sentence string) Figures {
	f := Figures{Vague: len(vague.FindAllString(sentence, -1))}
	words := len(strings.Fields(sentence))
	if words < minWords {
		return f
	}
	f.Sentences, f.Words = 1, words
	if opener.MatchString(sentence) {
		f.Openers = 1
	}
	if mark.MatchString(sentence) {
		f.Marks = 1
	}
	return f
}

// Sentences splits a paragraph into sentences.
func Sentences(paragraph string) []string {
	rest := strings.Join(strings.Fields(paragraph), " ")
	var all []string
	for from := 0; ; {
		found := end.FindStringSubmatchIndex(rest[from:])
		if found == nil {
			break
		}
		stop, next := from+found[0]+1, from+found[2]
		if short.MatchString(rest[:stop]) {
			from = next
			continue
		}
		all = append(all, strings.TrimSpace(rest[:next]))
		rest, from = rest[next:], 0
	}
	if rest != "" {
		all = append(all, rest)
	}
	return all
}
