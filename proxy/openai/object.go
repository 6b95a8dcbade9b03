package openai

import (
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

const (
	// maxFigure bounds counts that a request may ask for: figures of one
	// reservation end there.
	maxFigure = 1<<31 - 1
	maxModel  = 256 // bytes of a model's name
)

// object is a request's JSON object of which some members are known.
type object struct {
	root  gjson.Result
	names []string
	found []gjson.Result // of names
}

// readObject reads the members that names lists, each of which may occur once
// and must be spelled exactly so.
func readObject(body []byte, names []string) (*object, error) {
	root, bad := jsonbody.Parse(body)
	if bad != nil {
		return nil, bad
	}
	if strings.TrimLeft(root.Raw[1:], " \t\r\n")[0] == '}' {
		return nil, &proxy.BadRequest{Detail: "The body is an empty object. Send a request."}
	}
	return pick(root, "", names)
}

func pick(root gjson.Result, prefix string, names []string) (*object, error) {
	o := &object{root: root, names: names, found: make([]gjson.Result, len(names))}
	if bad := jsonbody.Pick(root, prefix, names, o.found); bad != nil {
		return nil, bad
	}
	return o, nil
}

// given says that a member is there and not null, which is the same as not
// giving it.
func (o *object) given(i int) bool { return o.found[i].Type != gjson.Null }

// flag reads a boolean; absent is false.
func (o *object) flag(i int) (bool, error) {
	switch o.found[i].Type {
	case gjson.Null, gjson.False:
		return false, nil
	case gjson.True:
		return true, nil
	}
	return false, o.bad(i, "must be true or false.")
}

// figure reads a whole number from least to most; absent is otherwise.
func (o *object) figure(i int, least, most, otherwise int64) (int64, error) {
	if !o.given(i) {
		return otherwise, nil
	}
	n, ok := jsonbody.Count(o.found[i].Raw)
	if !ok || n < least || n > most {
		return 0, o.bad(i, "must be a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10)+". Leave it out for the default.")
	}
	return n, nil
}

// str reads a string; absent is "".
func (o *object) str(i int) (string, error) {
	if o.given(i) && o.found[i].Type != gjson.String {
		return "", o.bad(i, "must be a string.")
	}
	return o.found[i].Str, nil
}

func (o *object) bad(i int, detail string) error {
	return &proxy.BadRequest{Field: o.names[i], Detail: detail}
}

// model reads the model's name. What the path named is what counts, as it does
// at Azure, whose clients put any name into the body.
func (o *object) model(i int, path string) (string, error) {
	name, err := o.str(i)
	if err != nil {
		return "", err
	}
	if path != "" {
		name = path
	}
	return checkModel(name)
}

// checkModel gives a name that does not keep the body that it came in.
func checkModel(name string) (string, error) {
	switch {
	case name == "":
		return "", &proxy.BadRequest{Field: "model", Detail: "is missing. Name a model; GET /v1/models lists them."}
	case len(name) > maxModel:
		return "", &proxy.BadRequest{Field: "model", Detail: "is longer than " + strconv.Itoa(maxModel) + " bytes. GET /v1/models lists the names."}
	}
	return strings.Clone(name), nil
}
