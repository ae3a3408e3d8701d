package simulator

import (
	"math/rand/v2"
	"slices"
	"strconv"
)

// options maps the names of an item's attributes, such as max_hp, to their values; a missing
// value is zero.
type options map[string]int

// The member names of each kind of option object that an item has, in the order of the real
// responses.
var (
	etcNames         = []string{"str", "dex", "int", "luk", "max_hp", "max_mp", "attack_power", "magic_power", "armor", "speed", "jump"}
	totalNames       = append(etcNames[:11:11], "boss_damage", "ignore_monster_armor", "all_stat", "damage", "equipment_level_decrease", "max_hp_rate", "max_mp_rate")
	baseNames        = append(etcNames[:11:11], "boss_damage", "ignore_monster_armor", "all_stat", "max_hp_rate", "max_mp_rate", "base_equipment_level")
	addNames         = append(etcNames[:11:11], "boss_damage", "damage", "all_stat", "equipment_level_decrease")
	exceptionalNames = append(etcNames[:8:8], "exceptional_upgrade")
)

// numeric lists the few options that are JSON numbers instead of strings.
var numeric = map[string]bool{"equipment_level_decrease": true, "base_equipment_level": true, "exceptional_upgrade": true}

func (j *jsonText) options(name string, names []string, values options) {
	j.name(name)
	j.begin('{')
	for _, n := range names {
		if numeric[n] {
			j.number(n, values[n])
		} else {
			j.digits(n, values[n])
		}
	}
	j.end('}')
}

// item contains the fields whose values differ between the items of a character. An empty string
// is written as null.
type item struct {
	slot                             slot
	name, icon, description          string
	shapeName, shapeIcon             string
	base, add, etc, star             options
	grade, additionalGrade           string
	potential, additional            [3]string
	scrolls, cuttable, upgradeable   int
	soulName, soulOption             string
	starforce, specialRing           int
	expires, golden, starforceScroll string
	companion                        bool // true for an item of the companion (a dragon or a mechanic), which has no fields potential_option_…
}

func (j *jsonText) items(list []item) {
	j.begin('[')
	for _, it := range list {
		j.item(it)
	}
	j.end(']')
}

func (j *jsonText) item(it item) {
	j.itemStart(it)
	j.digits("scroll_upgrade", it.scrolls)
	j.digits("cuttable_count", it.cuttable)
	j.itemRest(it)
}

func (j *jsonText) itemStart(it item) {
	j.next()
	j.begin('{')
	j.text("item_equipment_part", it.slot.part)
	j.text("item_equipment_slot", it.slot.name)
	j.text("item_name", it.name)
	j.text("item_icon", it.icon)
	j.text("item_description", it.description)
	j.text("item_shape_name", it.shapeName)
	j.text("item_shape_icon", it.shapeIcon)
	j.text("item_gender", "")
	total := options{}
	for _, some := range []options{it.base, it.add, it.etc, it.star} {
		for name, value := range some {
			total[name] += value
		}
	}
	j.options("item_total_option", totalNames, total)
	j.options("item_base_option", baseNames, it.base)
	if !it.companion {
		j.text("potential_option_grade", it.grade)
		j.text("additional_potential_option_grade", it.additionalGrade)
		j.text("potential_option_flag", "false")
		for i, line := range it.potential {
			j.text("potential_option_"+strconv.Itoa(i+1), line)
		}
		j.text("additional_potential_option_flag", "false")
		for i, line := range it.additional {
			j.text("additional_potential_option_"+strconv.Itoa(i+1), line)
		}
	}
	j.number("equipment_level_increase", 0)
	j.options("item_exceptional_option", exceptionalNames, nil)
	j.options("item_add_option", addNames, it.add)
	j.number("growth_exp", 0)
	j.number("growth_level", 0)
}

func (j *jsonText) itemRest(it item) {
	j.text("golden_hammer_flag", it.golden)
	j.digits("scroll_resilience_count", 0)
	j.digits("scroll_upgradeable_count", it.upgradeable)
	j.text("soul_name", it.soulName)
	j.text("soul_option", it.soulOption)
	j.options("item_etc_option", etcNames, it.etc)
	j.digits("starforce", it.starforce)
	j.text("starforce_scroll_flag", it.starforceScroll)
	j.options("item_starforce_option", etcNames, it.star)
	j.number("special_ring_level", it.specialRing)
	j.text("date_expire", it.expires)
	j.text("freestyle_flag", "0")
	j.end('}')
}

// outfit contains the items of one character: 24 worn items (a ring and 23 others), three presets
// of 24 items, and the items of its companion, a dragon or a mechanic. The worn items and the
// presets together contain 34 different items.
type outfit struct {
	ring             item
	worn             []item
	presets          [3][]item
	dragon, mechanic []item
}

// These constants are the indexes of some of the 24 slots. They decide which fields of an item are
// null, as in real responses. In items of the slots from bare to bareEnd-1, the fields
// potential_option_… are null.
const (
	ringSlot   = 23
	weaponSlot = 10 // the only slot whose item has a soul (soulName, soulOption)
	bare       = 13
	bareEnd    = 17
)

func (w *words) outfit(rng *rand.Rand, mechanic bool) outfit {
	described, additionalBare := 6, bare-1
	if mechanic {
		described, additionalBare = 3, bare
	}
	dress := func(i int) item {
		it := w.item(rng, w.slots[i])
		if i < described {
			it.description = w.sentence(rng, 60+rng.IntN(42))
		}
		if i >= bare && i < bareEnd {
			it.grade, it.potential = "", [3]string{}
		}
		if i >= additionalBare && i < bareEnd {
			it.additionalGrade, it.additional = "", [3]string{}
		}
		if i == weaponSlot {
			it.soulName, it.soulOption = w.word(rng, 5)+" "+w.word(rng, 6), w.word(rng, 3)+" +7"
		}
		return it
	}
	o := outfit{ring: dress(ringSlot)}
	o.ring.specialRing = 4
	if mechanic {
		o.ring.expires = "2031-01-31T00:00+09:00"
	}
	for i := range ringSlot {
		o.worn = append(o.worn, dress(i))
	}
	// Each preset contains a second ring and three items that no other preset has.
	spare := dress(ringSlot)
	own := slices.DeleteFunc(rng.Perm(ringSlot), func(i int) bool { return i == weaponSlot })
	for p := range o.presets {
		o.presets[p] = append([]item{spare}, o.worn...)
		for _, i := range own[3*p : 3*p+3] {
			o.presets[p][i+1] = dress(i)
		}
	}
	companions := make([]item, 0, len(w.companions))
	for _, name := range w.companions {
		it := w.item(rng, slot{name, name})
		it.companion = true
		companions = append(companions, it)
	}
	if mechanic {
		o.mechanic = companions
	} else {
		o.dragon = companions
	}
	return o
}

func (w *words) item(rng *rand.Rand, s slot) item {
	it := item{
		slot: s, name: w.word(rng, 2+rng.IntN(3)) + " " + w.word(rng, 2+rng.IntN(4)), icon: icon(rng),
		golden: w.unused, starforceScroll: w.unused, cuttable: 255,
		grade: w.grades[0], additionalGrade: pick(rng, w.grades),
	}
	it.shapeName, it.shapeIcon = it.name, it.icon
	if rng.IntN(6) == 0 {
		it.shapeName, it.shapeIcon = w.word(rng, 4)+" "+w.word(rng, 5), icon(rng)
	}
	// Real items resemble each other: values are round, several options have the same value, and half
	// of the items have no additional values. A real body therefore compresses 14:1, and a generated
	// body must do so too.
	stat := []int{15, 40, 60, 150}[rng.IntN(4)]
	it.base = options{
		"str": stat, "dex": stat, "attack_power": rng.IntN(3), "magic_power": rng.IntN(3), "armor": 100 * rng.IntN(5),
		"base_equipment_level": 50 * (2 + rng.IntN(4)),
	}
	if rng.IntN(3) == 0 {
		it.base["max_hp"], it.base["max_mp"] = 255, 255
	}
	if rng.IntN(8) == 0 {
		it.base["ignore_monster_armor"] = 10
	}
	if rng.IntN(2) == 0 {
		it.add = options{"str": 4 * (1 + rng.IntN(20)), "dex": rng.IntN(2) * 24, "attack_power": rng.IntN(3), "all_stat": rng.IntN(7)}
	}
	if rng.IntN(4) > 0 {
		it.scrolls = []int{4, 7, 8, 12}[rng.IntN(4)]
		it.etc = options{"str": 5 * it.scrolls, "dex": it.scrolls, "attack_power": rng.IntN(4)}
	}
	if rng.IntN(4) > 0 {
		it.starforce = []int{12, 17, 18, 22}[rng.IntN(4)]
		boost := 7 * it.starforce
		it.star = options{"str": boost, "dex": boost, "max_hp": 255, "attack_power": rng.IntN(60), "armor": 10 * boost}
	}
	if rng.IntN(4) == 0 {
		it.cuttable = rng.IntN(11)
	}
	it.upgradeable = []int{0, 0, 0, 0, 0, 1, 2}[rng.IntN(7)]
	for i := range it.potential {
		it.potential[i] = w.enchant(rng, "%")
		it.additional[i] = w.enchant(rng, "")
	}
	return it
}

func (w *words) enchant(rng *rand.Rand, unit string) string {
	which := rng.IntN(len(w.enchants)) * rng.IntN(len(w.enchants)) / len(w.enchants) // a random index; low indexes are more frequent than high ones
	return w.enchants[which] + " : +" + strconv.Itoa(3*(1+which%4)) + unit
}
