package engine

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/berth-cri/berth/pkg/engine/nri"
)

// complete fails for parts that were put together without something that they
// need: a pointer, an interface or a function that is nil. It is found out at the
// start and not by the first pod. Plugins alone may be nil, where none can come.
func complete(parts ...any) error {
	var lacks []error
	for _, part := range parts {
		v := reflect.Indirect(reflect.ValueOf(part))
		for i := range v.NumField() {
			field := v.Type().Field(i)
			switch field.Type.Kind() {
			case reflect.Pointer, reflect.Interface, reflect.Func:
			default:
				continue
			}
			if v.Field(i).IsNil() && field.Type != reflect.TypeFor[*nri.Plugins]() {
				lacks = append(lacks, fmt.Errorf("engine: %s was put together without its %s", v.Type().Name(), field.Name))
			}
		}
	}
	return errors.Join(lacks...)
}
