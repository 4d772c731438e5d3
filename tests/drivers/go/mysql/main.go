// go-sql-driver: prepared and interpolated statements, transactions, a pool.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func open(more string) *sql.DB {
	get := os.Getenv
	db, err := sql.Open("mysql", fmt.Sprintf("%s:%s@tcp(%s:%s)/%s?parseTime=true%s", get("DB_USER"), get("DB_PASSWORD"), get("DB_HOST"), get("DB_PORT"), get("DB_NAME"), more))
	must(err)
	return db
}

func statements(db *sql.DB) {
	var number int
	var text string
	var moment time.Time
	must(db.QueryRow("SELECT ? + 1, ?, TIMESTAMP('2026-01-02 03:04:05')", 41, "é🙂").Scan(&number, &text, &moment))
	fmt.Println(number, text, moment)
	_, err := db.Exec("SELECT nothing FROM nowhere")
	var told *mysql.MySQLError
	fmt.Println(errors.As(err, &told) && told.Number == 1146)
}

func transactions(db *sql.DB) {
	transaction, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	must(err)
	_, err = transaction.Exec("CREATE TEMPORARY TABLE kept (id INT AUTO_INCREMENT PRIMARY KEY, n INT)")
	must(err)
	statement, err := transaction.Prepare("INSERT INTO kept (n) VALUES (?)")
	must(err)
	for number := range 20 {
		_, err = statement.Exec(number)
		must(err)
	}
	var sum int
	must(transaction.QueryRow("SELECT SUM(n) FROM kept").Scan(&sum))
	fmt.Println(sum)
	must(transaction.Commit())
}

func concurrent(db *sql.DB) {
	db.SetMaxOpenConns(5)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for number := range 20 {
				var got int
				must(db.QueryRow("SELECT ?", worker*100+number).Scan(&got))
				if got != worker*100+number {
					must(errors.New("another's reply"))
				}
			}
		})
	}
	group.Wait()
}

func main() {
	for _, more := range []string{"", "&interpolateParams=true&multiStatements=true"} {
		db := open(more)
		statements(db)
		transactions(db)
		concurrent(db)
		must(db.Close())
	}
}
