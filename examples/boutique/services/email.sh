# The order confirmation. The watchdog's streaming mode starts this once a request: the body on standard input, the answer
# on standard output, an exit code other than 0 is an error. "Sending" is a line in the log.
order=$(cat)
to=$(printf '%s' "$order" | sed -n 's/.*"email": *"\([^"\\]*@[^"\\]*\)".*/\1/p')
if [ -z "$to" ]; then
  echo "no e-mail address in the order" >&2
  exit 1
fi
echo "confirmation for $to: ${#order} characters" >&2
printf '{"sentTo":"%s"}\n' "$to"
