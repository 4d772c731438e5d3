package memory

// Word is the lease word: who may touch a slot. Generation in bits 63–32, from in 31–16, holder in 15–0.
type Word uint64

// FreeWord is free since the claim that had this generation.
func FreeWord(generation uint32) Word { return Word(generation) << 32 }

// HeldWord is held by one party.
func HeldWord(generation uint32, by Party) Word { return FreeWord(generation) | Word(by) }

// OfferedWord is on its way from one party to another.
func OfferedWord(generation uint32, from, to Party) Word {
	return FreeWord(generation) | Word(from)<<16 | Word(to)
}

// Generation grows with each claim.
func (w Word) Generation() uint32 { return uint32(w >> 32) }

// From is who hands the slot over, or 0.
func (w Word) From() Party { return Party(w >> 16) }

// Holder is who holds the slot or is about to, or 0.
func (w Word) Holder() Party { return Party(w) }

// IsFree says whether it may be claimed.
func (w Word) IsFree() bool { return uint32(w) == 0 }

// Action is the name of a step in the contract's table.
type Action string

// The steps.
const (
	Claim    Action = "claim"
	Offer    Action = "offer"
	Accept   Action = "accept"
	TakeBack Action = "take_back"
	Release  Action = "release"
	Reclaim  Action = "reclaim"
)

// Step is what can happen to a slot; By acts.
type Step struct {
	Action   Action
	By       Party
	From, To Party
}

// After is the word after a step; false when the step is not allowed from here.
func (w Word) After(step Step) (Word, bool) {
	g := w.Generation()
	before, after := w, FreeWord(g)
	switch step.Action {
	case Claim:
		before, after = FreeWord(g), HeldWord(nextGeneration(g), step.By)
	case Offer:
		before, after = HeldWord(g, step.By), OfferedWord(g, step.By, step.To)
	case Accept:
		before, after = OfferedWord(g, step.From, step.By), HeldWord(g, step.By)
	case TakeBack:
		before, after = OfferedWord(g, step.By, step.To), HeldWord(g, step.By)
	case Release:
		before = HeldWord(g, step.By)
	case Reclaim:
	default:
		return w, false
	}
	return after, w == before
}

// nextGeneration is one more, and never 0.
func nextGeneration(g uint32) uint32 {
	if g++; g != 0 {
		return g
	}
	return 1
}
