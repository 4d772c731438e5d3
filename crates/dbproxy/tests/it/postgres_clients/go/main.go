// database/sql with both drivers of the field.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func run(driver string) {
	where := fmt.Sprintf("host=%s port=%s user=anybody password=wrong dbname=postgres sslmode=disable", os.Args[1], os.Args[2])
	db, err := sql.Open(driver, where)
	must(err)
	defer db.Close()
	db.SetMaxOpenConns(8)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for n := range 20 {
				var got int
				must(db.QueryRow("SELECT $1::int + 1", worker*100+n).Scan(&got))
				if got != worker*100+n+1 {
					panic("another's reply")
				}
			}
		})
	}
	group.Wait()
	statement, err := db.Prepare("SELECT $1::text || 'x'")
	must(err)
	for range 20 {
		var got string
		must(statement.QueryRow("a").Scan(&got))
	}
	must(statement.Close())
	tx, err := db.Begin()
	must(err)
	_, err = tx.Exec("CREATE TABLE of_go (a int)")
	must(err)
	must(tx.Rollback())
	if _, err := db.Exec("SELECT 1/0"); err == nil {
		panic("no error")
	}
	hurry, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := db.ExecContext(hurry, "SELECT pg_sleep(60)"); err == nil {
		panic("not cancelled")
	}
	must(db.Ping())
}

func main() {
	run("postgres")
	run("pgx")
	fmt.Println("done")
}
