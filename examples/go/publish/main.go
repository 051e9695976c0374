// Publishes with the official client's JetStream API to a new stream that holds orders.>, and prints what it is told:
//
//	go run ./publish nats://127.0.0.1:4222
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func say(ack *jetstream.PubAck, err error) {
	var refused *jetstream.APIError
	switch {
	case errors.As(err, &refused):
		fmt.Printf("refused: %d %d %s\n", refused.Code, refused.ErrorCode, refused.Description)
	case err != nil:
		fmt.Printf("failed: %s\n", err)
	default:
		fmt.Printf("stored: %s %d %t\n", ack.Stream, ack.Sequence, ack.Duplicate)
	}
}

func publish(url string) error {
	client, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer client.Close()
	js, err := jetstream.New(client)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	one, two := []byte("one"), []byte("two")
	say(js.Publish(ctx, "orders.new", one, jetstream.WithMsgID("order-1")))
	say(js.Publish(ctx, "orders.new", one, jetstream.WithMsgID("order-1")))
	say(js.Publish(ctx, "orders.new", two, jetstream.WithExpectLastSequence(0)))
	say(js.Publish(ctx, "orders.new", two, jetstream.WithExpectLastSequence(1)))
	say(js.Publish(ctx, "orders.new", two, jetstream.WithExpectLastMsgID("order-1")))
	say(js.Publish(ctx, "orders.new", two, jetstream.WithExpectStream("invoices")))
	say(js.Publish(ctx, "nobody.listens", two))
	for range 1000 {
		if _, err := js.PublishAsync("orders.new", two); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	say(js.Publish(ctx, "orders.new", two, jetstream.WithExpectLastSequence(1002)))
	return nil
}

func main() {
	if err := publish(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
