package registry

import (
	"context"
	"maps"
	"regexp"
	"strings"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// Redactor removes secrets from texts: the pull's credentials, and the parts of a URL after '?'
// (signed download links) and before '@'.
type Redactor struct{ secrets *strings.Replacer }

const redacted = "<redacted>"

var (
	urlQuery = regexp.MustCompile(`(\w+://[^\s"'?]+)\?[^\s"']+`)
	urlUser  = regexp.MustCompile(`(\w+://)[^\s"'/@]+@`)
)

// NewRedactor returns a redactor for credentials, which may be nil.
func NewRedactor(c *Credentials) Redactor {
	var pairs []string
	for _, s := range c.secrets() {
		pairs = append(pairs, s, redacted)
	}
	return Redactor{secrets: strings.NewReplacer(pairs...)}
}

// Text returns s without secrets.
func (r Redactor) Text(s string) string {
	s = urlQuery.ReplaceAllString(s, "$1?"+redacted)
	s = urlUser.ReplaceAllString(s, "$1"+redacted+"@")
	return r.secrets.Replace(s)
}

// Logger returns ctx with a logger that removes the secrets and writes to the output of ctx's
// logger. The registry client itself logs URLs, errors and headers.
func (r Redactor) Logger(ctx context.Context) context.Context {
	return withLogger(ctx, func(l *logrus.Logger) {
		outer := l.Hooks
		// The redaction comes first, so that hooks of the outer logger see clean entries.
		l.Hooks = logrus.LevelHooks{}
		l.AddHook(r)
		for level, hooks := range outer {
			l.Hooks[level] = append(l.Hooks[level], hooks...)
		}
	})
}

// withLogger returns ctx with a changed copy of its logger.
func withLogger(ctx context.Context, change func(*logrus.Logger)) context.Context {
	entry := log.G(ctx)
	of := entry.Logger
	l := &logrus.Logger{Out: of.Out, Formatter: of.Formatter, Hooks: of.Hooks, Level: of.GetLevel(), ExitFunc: of.ExitFunc}
	change(l)
	return log.WithLogger(ctx, &logrus.Entry{Logger: l, Data: maps.Clone(entry.Data)})
}

// Levels implements logrus.Hook.
func (r Redactor) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook: it cleans the entry before it is written.
func (r Redactor) Fire(e *logrus.Entry) error {
	e.Message = r.Text(e.Message)
	for k, v := range e.Data {
		switch v := v.(type) {
		case string:
			e.Data[k] = r.field(k, v)
		case error:
			e.Data[k] = r.Text(v.Error())
		}
	}
	return nil
}

// field removes the whole value of a header that carries a secret.
func (r Redactor) field(key, value string) string {
	if strings.Contains(key, "cookie") || strings.HasSuffix(key, "authorization") || strings.Contains(key, "token") {
		return redacted
	}
	return r.Text(value)
}
