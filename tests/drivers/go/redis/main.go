// go-redis: RESP 3, pipelines, transactions, scripts, subscriptions, a pool.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var background = context.Background()

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func open(protocol int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: os.Getenv("DB_HOST") + ":" + os.Getenv("DB_PORT"), Password: os.Getenv("DB_PASSWORD"), DB: protocol, Protocol: protocol, ClientName: "matrix",
	})
}

func commands(client *redis.Client) {
	must(client.FlushDB(background).Err())
	must(client.HSet(background, "hash", "a", "1", "b", "é🙂").Err())
	fmt.Println(client.HGetAll(background, "hash").Val(), client.Get(background, "none").Err(), client.ClientGetName(background).Val())
	fmt.Println(client.Eval(background, "return {KEYS[1], ARGV[1]}", []string{"k"}, "v").Val())
	fmt.Println(client.LPush(background, "hash", 1).Err())
	fmt.Println(client.BLPop(background, 100*time.Millisecond, "empty").Err())
}

func pipelines(client *redis.Client) {
	results, err := client.TxPipelined(background, func(pipe redis.Pipeliner) error {
		for range 20 {
			pipe.Incr(background, "sum")
		}
		return nil
	})
	must(err)
	fmt.Println(len(results), client.Get(background, "sum").Val())
	err = client.Watch(background, func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(background, func(pipe redis.Pipeliner) error { return pipe.Set(background, "sum", 0, 0).Err() })
		return err
	}, "sum")
	fmt.Println(err)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20 {
				must(client.Incr(background, "sum").Err())
			}
		})
	}
	group.Wait()
	fmt.Println(client.Get(background, "sum").Val())
}

func subscriptions(client *redis.Client) {
	channel := client.Subscribe(background, "news")
	_, err := channel.Receive(background)
	must(err)
	must(client.Publish(background, "news", "hello").Err())
	message, err := channel.ReceiveMessage(background)
	must(err)
	fmt.Println(message.Payload)
	must(channel.Close())
}

func main() {
	for _, protocol := range []int{2, 3} {
		client := open(protocol)
		commands(client)
		pipelines(client)
		subscriptions(client)
		must(client.FlushAll(background).Err())
		must(client.Close())
	}
}
