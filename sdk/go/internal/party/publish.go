package party

import (
	"context"
	"slices"

	"nearpath.io/nearpath/internal/memory"
)

// PublishOutcome is what became of an event for a topic.
type PublishOutcome struct {
	// Sent is the functions that subscribe and to one of whose instances it was sent.
	Sent int
	// Missed is the functions that subscribe and whose instances could not be sent to.
	Missed int
}

// Publish sends an event to one instance of each function that wants the topic. HeadBytes of ask should not have a :name.
func (p *Endpoint) Publish(ctx context.Context, topic string, ask *CallRequest) (published PublishOutcome, err error) {
	head, err := memory.AppendField(make([]byte, 0, len(ask.HeadBytes)+len(topic)+16), ":name", topic)
	if err != nil {
		return published, err
	}
	event := *ask
	event.HeadBytes = append(head, ask.HeadBytes...)
	for _, ends := range *p.subscribers.Load() {
		newest := ends[len(ends)-1] // whose filters hold for its function
		if !slices.ContainsFunc(newest.Topics, func(filter string) bool { return Selects(filter, topic) }) {
			continue
		}
		if leastLoaded(ends).notify(ctx, &event) == nil {
			published.Sent++
		} else {
			published.Missed++
		}
	}
	return published, ctx.Err()
}
