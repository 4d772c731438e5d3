// pgx: its own interface, batches, COPY, a pool; then database/sql.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
)

var background = context.Background()

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func url() string {
	get := os.Getenv
	return fmt.Sprintf("postgres://%s:%s@%s:%s/%s?application_name=matrix", get("DB_USER"), get("DB_PASSWORD"), get("DB_HOST"), get("DB_PORT"), get("DB_NAME"))
}

func values(client *pgx.Conn) {
	var number int64
	var text string
	var moment time.Time
	must(client.QueryRow(background, "SELECT $1::int8, $2::text, '2026-01-02 03:04:05Z'::timestamptz", int64(1)<<40, "é🙂").Scan(&number, &text, &moment))
	fmt.Println(number, text, moment.UTC())
	_, err := client.Exec(background, "SELECT 1/0")
	var told *pgconn.PgError
	fmt.Println(errors.As(err, &told) && told.Code == "22012")
}

func batches(client *pgx.Conn) {
	batch := &pgx.Batch{}
	for number := range 50 {
		batch.Queue("SELECT $1::int", number)
	}
	results, sum := client.SendBatch(background, batch), 0
	for range 50 {
		var number int
		must(results.QueryRow().Scan(&number))
		sum += number
	}
	must(results.Close())
	fmt.Println(sum)
}

func copies(client *pgx.Conn) {
	transaction, err := client.Begin(background)
	must(err)
	_, err = transaction.Exec(background, "CREATE TEMPORARY TABLE kept (id int, text text) ON COMMIT DROP")
	must(err)
	rows := make([][]any, 1000)
	for number := range rows {
		rows[number] = []any{number, "x"}
	}
	count, err := transaction.CopyFrom(background, pgx.Identifier{"kept"}, []string{"id", "text"}, pgx.CopyFromRows(rows))
	must(err)
	fmt.Println(count)
	must(transaction.Rollback(background))
}

func cancels(client *pgx.Conn) {
	_, err := client.Exec(background, "SET statement_timeout = 200")
	must(err)
	_, err = client.Exec(background, "SELECT pg_sleep(60)")
	var told *pgconn.PgError
	fmt.Println(errors.As(err, &told) && told.Code == "57014")
}

func pooled() {
	pool, err := pgxpool.New(background, url())
	must(err)
	defer pool.Close()
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for number := range 20 {
				var got int
				must(pool.QueryRow(background, "SELECT $1::int", worker*100+number).Scan(&got))
				if got != worker*100+number {
					must(errors.New("another's reply"))
				}
			}
		})
	}
	group.Wait()
}

func standard() {
	db, err := sql.Open("pgx", url())
	must(err)
	defer db.Close()
	hurry, cancel := context.WithTimeout(background, 200*time.Millisecond)
	defer cancel()
	_, err = db.ExecContext(hurry, "SELECT pg_sleep(60)")
	var version string
	must(db.QueryRow("SHOW server_version_num").Scan(&version))
	fmt.Println(err != nil, version)
}

func main() {
	client, err := pgx.Connect(background, url())
	must(err)
	fmt.Println(client.PgConn().ParameterStatus("server_version"), client.PgConn().ParameterStatus("TimeZone"))
	for _, step := range []func(*pgx.Conn){values, batches, copies, cancels} {
		step(client)
	}
	must(client.Close(background))
	pooled()
	standard()
}
