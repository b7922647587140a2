// Package follow reads changelogs: what has been committed to a partition, in order, and where that ends.
package follow

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

const (
	connectsWithin = 5 * time.Second
	// A broker that has been away is found again within a second.
	longestBackoff  = time.Second
	shortestBackoff = 200 * time.Millisecond
	// After a network cut a connection may stay dead for as long again as the cut has lasted.
	answersWithin   = 10 * time.Second
	metadataMaxAge  = time.Minute
	tokenWithin     = 10 * time.Second
	maxResponseSize = 256 << 20
)

// Brokers is where Kafka's brokers are, and how to log in to them: what Python has read of its settings.
type Brokers struct {
	Bootstrap []string
	// TLS returns how the next connection is encrypted, by files that may have changed. Nil: it isn't.
	TLS func() (*tls.Config, error)
	// Mechanism is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, or nothing.
	Mechanism      string
	User, Password string
	// TokenURL and Scope are OAUTHBEARER's.
	TokenURL, Scope string
}

// Client makes a client. It connects when it is first used.
func (b Brokers) Client(id string) (*kgo.Client, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(b.Bootstrap...),
		kgo.ClientID(id),
		kgo.Dialer(b.dial),
		kgo.RetryBackoffFn(backoff),
		kgo.RequestTimeoutOverhead(answersWithin),
		kgo.MetadataMaxAge(metadataMaxAge),
		kgo.BrokerMaxReadBytes(maxResponseSize),
		kgo.DisableClientMetrics(),
	}
	mechanism, err := b.mechanism()
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return kgo.NewClient(options...)
}

func backoff(failures int) time.Duration {
	return min(shortestBackoff<<min(failures, 8), longestBackoff)
}

func (b Brokers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: connectsWithin}
	if b.TLS == nil {
		return dialer.DialContext(ctx, network, address)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config, err := b.TLS()
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.ServerName = host
	ctx, cancel := context.WithTimeout(ctx, connectsWithin)
	defer cancel()
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
}

// mechanism returns how clients log in; nil if they don't.
func (b Brokers) mechanism() (sasl.Mechanism, error) {
	switch b.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		return plain.Auth{User: b.User, Pass: b.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: b.User, Pass: b.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: b.User, Pass: b.Password}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Oauth(b.tokens()), nil
	}
	return nil, fmt.Errorf("kafka_sasl_mechanism %q is not known here", b.Mechanism)
}

// plainly has requests for tokens carry the credentials as Kafka's own clients send them: not escaped as in a URL.
type plainly struct {
	user, password string
	next           http.RoundTripper
}

// RoundTrip see http.RoundTripper.
func (p plainly) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.SetBasicAuth(p.user, p.password)
	return p.next.RoundTrip(request)
}

// tokens returns what gives a token for each login: the one before as long as it is valid.
func (b Brokers) tokens() func(context.Context) (oauth.Auth, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if b.TLS != nil {
		transport.DialTLSContext = b.dial
	}
	client := &http.Client{Timeout: tokenWithin, Transport: plainly{b.User, b.Password, transport}}
	config := clientcredentials.Config{
		ClientID: b.User, ClientSecret: b.Password, TokenURL: b.TokenURL, AuthStyle: oauth2.AuthStyleInHeader,
	}
	if b.Scope != "" {
		config.Scopes = []string{b.Scope}
	}
	source := config.TokenSource(context.WithValue(context.Background(), oauth2.HTTPClient, client))
	return func(context.Context) (oauth.Auth, error) {
		token, err := source.Token()
		if err != nil {
			return oauth.Auth{}, fmt.Errorf("no token from %s: %w", b.TokenURL, err)
		}
		return oauth.Auth{Token: token.AccessToken}, nil
	}
}
