// Reads manifests as Kubernetes and Prometheus's operator do: each document of standard input into the type that
// it names, strictly.
// Prints the kinds; an unknown field, a value of another type or an unknown kind ends it with code 1.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		panic(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			_, kind, decodeErr := decoder.Decode(document, nil, nil)
			if err = decodeErr; err == nil {
				fmt.Println(kind.Kind)
				continue
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
