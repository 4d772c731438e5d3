package memory

// LeaseWord has a slot's generation in bits 63–32, sender in bits 31–16 and holder in bits 15–0.
type LeaseWord uint64

// FreeLease returns the word of a free slot whose last claim had this generation.
func FreeLease(generation uint32) LeaseWord { return LeaseWord(generation) << 32 }

// HeldLease returns the word of a slot that one endpoint holds.
func HeldLease(generation uint32, by EndpointID) LeaseWord {
	return FreeLease(generation) | LeaseWord(by)
}

// OfferedLease returns the word of a slot on its way from one endpoint to another.
func OfferedLease(generation uint32, from, to EndpointID) LeaseWord {
	return FreeLease(generation) | LeaseWord(from)<<16 | LeaseWord(to)
}

// Generation grows with each claim.
func (w LeaseWord) Generation() uint32 { return uint32(w >> 32) }

// From is the endpoint that sends the slot, or 0.
func (w LeaseWord) From() EndpointID { return EndpointID(w >> 16) }

// Holder is the endpoint that holds the slot or is about to, or 0.
func (w LeaseWord) Holder() EndpointID { return EndpointID(w) }

// IsFree reports whether the slot can be claimed.
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

// LeaseStep is a step of a slot's lease by endpoint By.
type LeaseStep struct {
	Action   LeaseAction
	By       EndpointID
	From, To EndpointID
}

// After returns the word after a step; false if the step is not allowed from this word.
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

// nextGeneration returns the next generation, which is never 0.
func nextGeneration(g uint32) uint32 {
	if g++; g != 0 {
		return g
	}
	return 1
}
