package simulator

import (
	"cmp"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
)

const (
	// itemSets is the number of different item sets. Each item set is generated and compressed at
	// its first use (about 4 ms) and then kept in memory. All item sets need 17 MB, or 25 MB with
	// Config.Pretty.
	itemSets = 64
	// buckets is the number of groups of entities that change together. So Control.ChangePercent has
	// a resolution of 0.01 percent.
	buckets = 10_000
)

// content generates all documents from the seed.
type content struct {
	seed     uint64
	pretty   bool
	words    words
	itemSets [itemSets]itemSet
}

func newContent(seed uint64, pretty bool) *content {
	return &content{seed: seed, pretty: pretty, words: makeWords(rand.New(rand.NewPCG(seed, 0)))}
}

// entity contains the values that select the content of a document: the entity's key, the date of
// the call and the entity's revision.
type entity struct {
	key      string
	date     string // date parameter of the call; empty if the call has none
	revision uint32
	ocid     string // ocid that a rename has given to a character name; empty: none
}

// Each constant is a purpose for which a key is hashed, for example to choose the item set of the
// key's entity. The hashes of one key for different purposes are independent.
const (
	forBucket uint64 = iota + 1
	forItemSet
	forEquipment
	forBasic
	forStat
	forID
)

// hash is FNV-1a over the key, then the finalizer of SplitMix64 with seed and purpose.
func (c *content) hash(purpose uint64, key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h += (c.seed + purpose) * 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// bucket returns the number of the bucket that a key belongs to. All entities in one bucket get a
// new revision at the same time.
func (c *content) bucket(key string) int {
	return int(c.hash(forBucket, key) % buckets)
}

// values returns a random source for the values of one entity. The source depends on the entity's
// revision, so the values change with each revision.
func (c *content) values(purpose uint64, e entity) *rand.Rand {
	return rand.New(rand.NewPCG(c.hash(purpose, e.key), uint64(e.revision)))
}

// character returns the gender and the class of an entity's character. They are the same in all
// documents and revisions of the entity.
func (c *content) character(key string) (gender, class string) {
	h := c.hash(forItemSet, key)
	return c.words.genders[h>>32%2], c.words.classes[h%itemSets%uint64(len(c.words.classes))]
}

// itemEquipment concatenates six parts. Three parts are shared with other entities and
// precompressed. The other three parts are generated for the entity: the head, two fields of one
// ring, and the title.
func (c *content) itemEquipment(e entity) []part {
	w := &c.itemSets[c.hash(forItemSet, e.key)%itemSets]
	w.once.Do(func() { c.fill(w, c.hash(forItemSet, e.key)%itemSets) })
	rng := c.values(forEquipment, e)

	head := jsonText{pretty: c.pretty, empty: true}
	head.begin('{')
	head.text("date", e.date)
	gender, class := c.character(e.key)
	head.text("character_gender", gender)
	head.text("character_class", class)
	head.number("preset_no", 1+rng.IntN(3))

	ring := jsonText{pretty: c.pretty, depth: 3}
	ring.digits("scroll_upgrade", rng.IntN(16))
	ring.digits("cuttable_count", rng.IntN(11))

	title := jsonText{pretty: c.pretty, depth: 1}
	title.name("title")
	title.begin('{')
	name := pick(rng, c.words.titles)
	title.text("title_name", name)
	title.text("title_icon", icon(rng)) // a random URL that is so long that two entities, or two revisions, never have the same document
	title.text("title_description", pick(rng, c.words.description))
	title.text("date_expire", "")
	title.text("date_option_expire", "")
	title.text("title_shape_name", name)
	title.text("title_shape_icon", icon(rng))
	title.text("title_shape_description", pick(rng, c.words.description))
	title.end('}')

	return []part{{plain: head.buf}, w.upToRing, {plain: ring.buf}, w.upToTitle, {plain: title.buf}, w.rest}
}

// itemSet is the large part of an item-equipment document. Many entities share one item set.
type itemSet struct {
	once                      sync.Once
	upToRing, upToTitle, rest part
}

func (c *content) fill(w *itemSet, number uint64) {
	rng := rand.New(rand.NewPCG(c.seed, number+1))
	set := c.words.outfit(rng, number%2 == 0)
	j := jsonText{pretty: c.pretty, depth: 1}
	cut := func() part {
		p := deflate(append([]byte(nil), j.buf...))
		j.buf = j.buf[:0]
		return p
	}

	j.name("item_equipment")
	j.begin('[')
	j.itemStart(set.ring)
	w.upToRing = cut()
	j.itemRest(set.ring)
	for _, it := range set.worn {
		j.item(it)
	}
	j.end(']')
	for i, preset := range set.presets {
		j.name("item_equipment_preset_" + strconv.Itoa(i+1))
		j.items(preset)
	}
	w.upToTitle = cut()
	j.name("medal_shape")
	j.begin('{')
	for _, prefix := range []string{"medal_shape_", "medal_shape_changed_"} {
		j.text(prefix+"name", pick(rng, c.words.titles))
		j.text(prefix+"icon", icon(rng))
		j.text(prefix+"description", pick(rng, c.words.description))
	}
	j.end('}')
	j.name("dragon_equipment")
	j.items(set.dragon)
	j.name("mechanic_equipment")
	j.items(set.mechanic)
	j.end('}')
	w.rest = cut()
}

// basic returns a document of about 1 KB.
func (c *content) basic(e entity) []part {
	rng := c.values(forBasic, e)
	lasting := c.values(forBasic, entity{key: e.key})
	gender, class := c.character(e.key)
	j := jsonText{pretty: c.pretty, empty: true}
	j.begin('{')
	j.text("date", e.date)
	j.text("character_name", c.words.word(lasting, 2+lasting.IntN(5)))
	j.text("world_name", pick(lasting, c.words.worlds))
	j.text("character_gender", gender)
	j.text("character_class", class)
	j.text("character_class_level", "6")
	j.number("character_level", 200+lasting.IntN(95))
	j.number("character_exp", 1_000_000_000+rng.IntN(1_000_000_000_000_000))
	j.text("character_exp_rate", strconv.FormatFloat(float64(rng.IntN(100_000))/1000, 'f', 3, 64))
	j.text("character_guild_name", c.words.word(lasting, 2+lasting.IntN(5)))
	image := []byte("https://static.simulator.example/maplestory/character/look/")
	for len(image) < 430 {
		image = append(image, byte('A'+rng.IntN(26)))
	}
	j.text("character_image", string(image))
	j.text("character_date_create", "2015-07-09T00:00+09:00")
	j.text("access_flag", "true")
	j.text("liberation_quest_clear", strconv.Itoa(lasting.IntN(3)))
	j.end('}')
	return []part{deflate(j.buf)}
}

// stat returns a document of about 4 KB.
func (c *content) stat(e entity) []part {
	rng := c.values(forStat, e)
	_, class := c.character(e.key)
	j := jsonText{pretty: c.pretty, empty: true}
	j.begin('{')
	j.text("date", e.date)
	j.text("character_class", class)
	j.name("final_stat")
	j.begin('[')
	for i, name := range c.words.stats {
		j.next()
		j.begin('{')
		j.text("stat_name", name)
		if i%3 == 0 {
			j.text("stat_value", strconv.FormatFloat(float64(rng.IntN(60_000))/100, 'f', 2, 64))
		} else {
			j.digits("stat_value", rng.IntN(100_000_000))
		}
		j.end('}')
	}
	j.end(']')
	j.number("remain_ap", 0)
	j.end('}')
	return []part{deflate(j.buf)}
}

// id returns the ocid of the character whose name is the entity's key. It depends neither on the
// revision nor on the case of the name.
func (c *content) id(e entity) []part {
	e.key = strings.ToLower(e.key)
	rng := rand.New(rand.NewPCG(c.hash(forID, e.key), 0))
	const digits = "0123456789abcdef"
	ocid := make([]byte, 32)
	for i := range ocid {
		ocid[i] = digits[rng.IntN(len(digits))]
	}
	j := jsonText{pretty: c.pretty, empty: true}
	j.begin('{')
	j.text("ocid", cmp.Or(e.ocid, string(ocid)))
	j.end('}')
	return []part{{plain: j.buf}}
}
