package fakeprovider

import "strings"

// random is splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014): small, and the same everywhere.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9E3779B97F4A7C15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// below is a number from 0 to n−1.
func (r *random) below(n int) int { return int(r.next() % uint64(n)) }

// between is a number from low to high.
func (r *random) between(low, high int64) int64 {
	if high <= low {
		return low
	}
	return low + int64(r.next()%uint64(high-low+1))
}

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// id is prefix and n letters and digits.
func (r *random) id(prefix string, n int) string {
	b := make([]byte, 0, len(prefix)+n)
	b = append(b, prefix...)
	for range n {
		b = append(b, alphabet[r.below(len(alphabet))])
	}
	return string(b)
}

// words are what answers are made of. Each is one token, and so is each with a
// capital.
var words = strings.Fields(`amber anchor apple april arrow autumn bamboo barley basin beacon birch blossom
	breeze bridge bronze brook candle canyon cedar chalk cherry cinder cliff clover cloud cobalt comet copper coral
	cotton crane crystal dawn delta desert dew drift dune dusk eagle echo ember falcon fern field fjord flame flint
	forest fox frost garden glacier granite grove gull harbor hazel heron hill honey horizon indigo iris iron island
	ivory ivy jade jasper juniper kelp kite lagoon lake lantern lark leaf lemon lichen light lily linen lotus lunar
	maple marble marsh meadow mint mist moon moss mountain north oak oasis ocean olive onyx opal orchid otter owl
	palm path pearl pebble pine plain plum pond prairie quartz quill rain raven reed ridge river robin rose saffron
	sage sail salt sand sea shell shore silver sky slate snow south spark spring star stone storm stream summer sun
	swan tide timber trail valley velvet violet wave west wheat willow wind winter wren`)

// prose is a text of the first limit of n tokens: sentences that mean nothing.
// A smaller limit gives the beginning of the same text.
func prose(r random, n, limit int64) string {
	var b strings.Builder
	b.Grow(int(min(n, limit)) * 7)
	left := 0 // words left in the sentence
	for i := range min(n, limit) {
		if i == n-1 && i > 0 {
			b.WriteByte('.')
			break
		}
		if left == 0 {
			if i > 0 {
				b.WriteByte('.')
				left = -1
			} else {
				left = r.sentence(&b, i)
			}
			continue
		}
		if left < 0 {
			left = r.sentence(&b, i)
			continue
		}
		b.WriteByte(' ')
		b.WriteString(words[r.below(len(words))])
		left--
	}
	return b.String()
}

// sentence begins a sentence and returns how many words it has yet to get.
func (r *random) sentence(b *strings.Builder, at int64) int {
	if at > 0 {
		b.WriteByte(' ')
	}
	word := words[r.below(len(words))]
	b.WriteByte(word[0] - 'a' + 'A')
	b.WriteString(word[1:])
	return 4 + r.below(8)
}
