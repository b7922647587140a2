package orders

import (
	"crypto/tls"
	"fmt"

	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/pemfiles"
)

// brokersOf returns how brokers are reached. Files are read at each connection, as they may be changed.
func brokersOf(order *controlv1.EngineStart) (follow.Brokers, error) {
	brokers := follow.Brokers{
		Bootstrap: order.Bootstrap, Mechanism: order.Mechanism, User: order.User, Password: order.Password,
		TokenURL: order.TokenUrl, Scope: order.Scope,
	}
	if order.IsEncrypted {
		brokers.TLS = func() (*tls.Config, error) { return configOf(order) }
		if _, err := configOf(order); err != nil {
			return brokers, err
		}
	}
	return brokers, nil
}

func configOf(order *controlv1.EngineStart) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if order.Ca != "" {
		pool, err := pemfiles.Pool(order.Ca)
		if err != nil {
			return nil, fmt.Errorf("kafka_ca: %w", err)
		}
		config.RootCAs = pool
	}
	if order.Certificate != "" {
		pair, err := pemfiles.Pair(order.Certificate, order.Key)
		if err != nil {
			return nil, fmt.Errorf("kafka_certificate and kafka_key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
