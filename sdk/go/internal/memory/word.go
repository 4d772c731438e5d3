package memory

// LeaseWord is the lease word: who may touch a slot. Generation in bits 63–32, from in 31–16, holder in 15–0.
type LeaseWord uint64

// FreeLease is free since the claim that had this generation.
func FreeLease(generation uint32) LeaseWord { return LeaseWord(generation) << 32 }

// HeldLease is held by one party.
func HeldLease(generation uint32, by EndpointID) LeaseWord { return FreeLease(generation) | LeaseWord(by) }

// OfferedLease is on its way from one party to another.
func OfferedLease(generation uint32, from, to EndpointID) LeaseWord {
	return FreeLease(generation) | LeaseWord(from)<<16 | LeaseWord(to)
}

// Generation grows with each claim.
func (w LeaseWord) Generation() uint32 { return uint32(w >> 32) }

// From is who hands the slot over, or 0.
func (w LeaseWord) From() EndpointID { return EndpointID(w >> 16) }

// Holder is who holds the slot or is about to, or 0.
func (w LeaseWord) Holder() EndpointID { return EndpointID(w) }

// IsFree says whether it may be claimed.
func (w LeaseWord) IsFree() bool { return uint32(w) == 0 }

// LeaseAction is the name of a step in the contract's table.
type LeaseAction string

// The steps.
const (
	Claim    LeaseAction = "claim"
	Offer    LeaseAction = "offer"
	Accept   LeaseAction = "accept"
	TakeBack LeaseAction = "take_back"
	Release  LeaseAction = "release"
	Reclaim  LeaseAction = "reclaim"
)

// LeaseStep is what can happen to a slot; By acts.
type LeaseStep struct {
	Action   LeaseAction
	By       EndpointID
	From, To EndpointID
}

// After is the word after a step; false when the step is not allowed from here.
func (w LeaseWord) After(step LeaseStep) (LeaseWord, bool) {
	g := w.Generation()
	before, after := w, FreeLease(g)
	switch step.Action {
	case Claim:
		before, after = FreeLease(g), HeldLease(nextGeneration(g), step.By)
	case Offer:
		before, after = HeldLease(g, step.By), OfferedLease(g, step.By, step.To)
	case Accept:
		before, after = OfferedLease(g, step.From, step.By), HeldLease(g, step.By)
	case TakeBack:
		before, after = OfferedLease(g, step.By, step.To), HeldLease(g, step.By)
	case Release:
		before = HeldLease(g, step.By)
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
