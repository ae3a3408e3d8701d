package console

import (
	"errors"
	"maps"
	"regexp"
	"strings"
)

// fieldError is the error of one field of a form.
type fieldError struct {
	field string // name of the field
	err   error
}

func (e fieldError) Error() string { return e.err.Error() }
func (e fieldError) Unwrap() error { return e.err }

// These patterns find the field of an error of the settings. Such an error begins with the policy or
// the facet, and names the wrong members after it.
var (
	policyProblem   = regexp.MustCompile(`^policies\[\d+\] "([^"]+)": (.*)$`)
	policyPrefix    = regexp.MustCompile(`\b([Pp])olicies\[\d+\] `) // the start of such an error, which names the policy by its position too
	prefetchProblem = regexp.MustCompile(`^(?:prefetch\.)?facets\.([^.]+)\.([A-Za-z]+)[ :,.]`)
	policyMembers   = []struct{ member, field string }{{"limit", "limit."}, {"target", "target."}, {"highReserve", "high."}, {"lowReserve", "low."}}
)

// fieldProblems returns the error messages of the fields of a settings form, by the name of the field.
// Messages that name no field are left out: the form shows the whole error as well.
func fieldProblems(err error) map[string]string {
	all := map[string]string{}
	if err == nil {
		return all
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			maps.Copy(all, fieldProblems(one))
		}
		return all
	}
	if one, ok := errors.AsType[fieldError](err); ok {
		all[one.field] = errorSentence(one.err)
		return all
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if m := policyProblem.FindStringSubmatch(line); m != nil {
			members, _, _ := strings.Cut(m[2], ":")
			for _, p := range policyMembers {
				if strings.Contains(members, p.member) {
					all[p.field+m[1]] = errorSentence(errors.New(m[2]))
				}
			}
		}
		if m := prefetchProblem.FindStringSubmatch(line); m != nil {
			all[prefetchField+"."+m[1]+"."+m[2]] = errorSentence(errors.New(line))
		}
	}
	return all
}

// markFields sets the error message of each field that the error names.
func (s *settingsForm) markFields(err error) {
	problems := fieldProblems(err)
	for i := range s.Policies {
		markFields(s.Policies[i].Fields, problems)
	}
	for i := range s.Prefetch.Facets {
		markFields(s.Prefetch.Facets[i].Fields, problems)
	}
}

func markFields(fields []policyField, problems map[string]string) {
	for i := range fields {
		fields[i].Problem = problems[fields[i].Name]
	}
}
