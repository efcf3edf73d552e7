/* Values of "format" as patterns of whole texts. Sources: RFC 3339 (dates, durations), 5321 (mailboxes), 1123 (host names),
 * 2673 and 4291 (addresses), 3986 and 3987 (URI, IRI), 6570 (templates), 6901 (pointers), 4122 (uuid), 4648 (byte); ECMA-262
 * (regex). Some patterns accept less than their format allows: international host names are ASCII only, and Punycode labels,
 * which would have to be decoded, are rejected; a regex is one that other dialects read alike. */
#include "grammar/schema.h"

#include <string.h>

#define MONTH_DAY "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))"
#define LEAP_YEAR "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE "(?:\\d{4}-" MONTH_DAY "|" LEAP_YEAR "-02-29)"
#define OFFSET "(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define TIME "(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?" OFFSET "|23:59:60(?:\\.\\d+)?(?:[Zz]|[+-]00:00))"
#define DAYS "(?:\\d+D|\\d+M(?:\\d+D)?|\\d+Y(?:\\d+M(?:\\d+D)?)?)"
#define HOURS "T(?:\\d+S|\\d+M(?:\\d+S)?|\\d+H(?:\\d+M(?:\\d+S)?)?)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                                     \
  "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16 ":)?" H16              \
  ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16       \
  ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL ")*"
#define HOST_NAME "(?!.{254})(?!(?:.*\\.)?..--)" HOST
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define UTEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\u0080-\\u{10ffff}-]"
#define PCT "%[0-9A-Fa-f]{2}"
#define PCHAR(extra) "(?:[A-Za-z0-9._~!$&'()*+,;=:@" extra "-]|" PCT ")"
#define USER(extra) "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:" extra "-]|" PCT ")*@)?"
#define NAME(extra) "(?:[A-Za-z0-9._~!$&'()*+,;=" extra "-]|" PCT ")*"
#define AUTHORITY(extra)                                                                                                         \
  USER(extra) "(?:\\[(?:" IPV6 "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|" NAME(extra) ")(?::\\d*)?"
#define HIER(extra)                                                                                                              \
  "(?://" AUTHORITY(extra) "(?:/" PCHAR(extra) "*)*|/(?:" PCHAR(extra) "+(?:/" PCHAR(extra) "*)*)?|" PCHAR(extra) "+(?:/" PCHAR( \
      extra) "*)*|)"
#define TAIL(extra, query) "(?:\\?(?:" PCHAR(extra query) "|[/?])*)?(?:#(?:" PCHAR(extra) "|[/?])*)?"
#define ABSOLUTE(extra, query) "[A-Za-z][A-Za-z0-9+.-]*:" HIER(extra) TAIL(extra, query)
/* The first segment of a relative path has no colon. */
#define SEGMENT_NC(extra) "(?:[A-Za-z0-9._~!$&'()*+,;=@" extra "-]|" PCT ")+"
#define RELATIVE(extra, query)                                                                                                   \
  "(?://" AUTHORITY(extra) "(?:/" PCHAR(extra) "*)*|/(?:" PCHAR(extra) "+(?:/" PCHAR(extra) "*)*)?|" SEGMENT_NC(                 \
      extra) "(?:/" PCHAR(extra) "*)*|)" TAIL(extra, query)
#define UCS                                                                                                                      \
  "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\u{10000}-\\u{1fffd}\\u{20000}-\\u{2fffd}\\u{30000}-\\u{3fffd}\\u{e1000}-\\u{"  \
  "efffd}"
#define PRIVATE "\\ue000-\\uf8ff"
#define POINTER "(?:/(?:[^~/]|~[01])*)*"
#define VARIABLE "(?:[A-Za-z0-9_]|" PCT ")(?:\\.?(?:[A-Za-z0-9_]|" PCT "))*(?::[1-9]\\d{0,3}|\\*)?"

/* A regex of the syntax that ECMA-262 and other dialects share: groups nest up to three deep, and there are no references, named
 * groups, look-behinds or Unicode properties. Ranges go from a letter or digit to a later one of its kind, or are hexadecimal
 * from 0 on; the largest count of a quantifier has more digits than the least, or a larger first digit. */
#define RE_HEX "x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}"
#define RE_CLASS_ESCAPE "\\\\(?:[dDwWsSbtnrfv^$\\\\.*+?()\\[\\]{}|/-]|" RE_HEX ")"
#define RE_ESCAPE "\\\\(?:[dDwWsStnrfv^$\\\\.*+?()\\[\\]{}|/]|" RE_HEX ")"
#define RE_LATER                                                                                                                 \
  "0-[0-9]|1-[1-9]|2-[2-9]|3-[3-9]|4-[4-9]|5-[5-9]|6-[6-9]|7-[789]|8-[89]|a-[a-z]|b-[b-z]|c-[c-z]|d-[d-z]|e-[e-z]|f-[f-z]|"      \
  "[g-m]-[n-z]|[n-t]-[u-z]|A-[A-Z]|B-[B-Z]|C-[C-Z]|D-[D-Z]|E-[E-Z]|F-[F-Z]|[G-M]-[N-Z]|[N-T]-[U-Z]|\\\\x00-\\\\x[0-9A-Fa-f]{2}|" \
  "\\\\u0000-\\\\u[0-9A-Fa-f]{4}| -~|!-~"
#define RE_CLASS                                                                                                                 \
  "\\[\\^?(?:-?(?:" RE_LATER "|[^\\[\\]\\\\^-]|" RE_CLASS_ESCAPE ")(?:" RE_LATER "|[^\\[\\]\\\\-]|" RE_CLASS_ESCAPE ")*-?|-)\\]"
#define RE_COUNTS                                                                                                                \
  "\\d{1,3}|\\d{1,3},|0,\\d{1,3}|\\d,[1-9]\\d{1,2}|\\d\\d,[1-9]\\d\\d|1,[1-9]|2,[2-9]|3,[3-9]|4,[4-9]|5,[5-9]|6,[6-9]|7,[789]|"  \
  "8,[89]|"                                                                                                                      \
  "1\\d,[2-9]\\d|2\\d,[3-9]\\d|3\\d,[4-9]\\d|4\\d,[5-9]\\d|[5-7]\\d,[89]\\d"
#define RE_REPEAT "(?:(?:[*+?]|\\{(?:" RE_COUNTS ")\\})\\?{0,1})?"
#define RE_ATOM "[^\\^$\\\\.*+?()\\[\\]{}|]|\\.|" RE_ESCAPE "|" RE_CLASS
#define RE_LEVEL(inner) "(?:[|^$]|\\\\[bB]|(?:" RE_ATOM "|\\((?:\\?:)?" inner "\\))" RE_REPEAT "|\\(\\?[=!]" inner "\\))*"
#define RE_FLAT "(?:[|^$]|\\\\[bB]|(?:" RE_ATOM ")" RE_REPEAT ")*"

static const struct schema_format rows[] = {
    {"date", DATE, NULL, NULL},
    {"time", TIME, NULL, NULL},
    {"date-time", DATE "[Tt]" TIME, NULL, NULL},
    {"duration", "P(?:\\d+W|" DAYS "(?:" HOURS ")?|" HOURS ")", NULL, NULL},
    {"email", "(?:" ATEXT "+(?:\\." ATEXT "+)*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" HOST "|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\])",
     NULL, NULL},
    {"idn-email",
     UTEXT "+(?:\\." UTEXT "+)*@(?:" HOST
           "|[A-Za-z0-9\\u0080-\\u{10ffff}](?:[A-Za-z0-9\\u0080-\\u{10ffff}.-]*[A-Za-z0-9\\u0080-\\u{10ffff}])?)",
     NULL, NULL},
    {"hostname", HOST_NAME, NULL, NULL},
    {"idn-hostname", HOST_NAME, NULL, NULL},
    {"ipv4", IPV4, NULL, NULL},
    {"ipv6", IPV6, NULL, NULL},
    {"uri", ABSOLUTE("", ""), NULL, NULL},
    {"url", ABSOLUTE("", ""), NULL, NULL},
    {"uri-reference", "(?:" ABSOLUTE("", "") "|" RELATIVE("", "") ")", NULL, NULL},
    {"iri", ABSOLUTE(UCS, PRIVATE), NULL, NULL},
    {"iri-reference", "(?:" ABSOLUTE(UCS, PRIVATE) "|" RELATIVE(UCS, PRIVATE) ")", NULL, NULL},
    {"uri-template", "(?:[!#$&(-;=?-\\[\\]_a-z~" UCS PRIVATE "]|" PCT "|\\{[+#./;?&=,!@|]?" VARIABLE "(?:," VARIABLE ")*\\})*",
     NULL, NULL},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}", NULL, NULL},
    {"json-pointer", POINTER, NULL, NULL},
    {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" POINTER ")", NULL, NULL},
    {"regex", RE_LEVEL(RE_LEVEL(RE_LEVEL(RE_FLAT))), NULL, NULL},
    /* Formats of draft 3. */
    {"ip-address", IPV4, NULL, NULL},
    {"host-name", HOST_NAME, NULL, NULL},
    {"utc-millisec", NULL, NULL, NULL},
    /* Formats of the OpenAPI format registry. */
    {"byte", NULL, NULL, NULL}, /* the encoding of content is an annotation, like contentEncoding */
    {"binary", NULL, NULL, NULL},
    {"password", NULL, NULL, NULL},
    {"float", NULL, NULL, NULL},
    {"double", NULL, NULL, NULL},
    {"int8", NULL, "-128", "127"},
    {"int16", NULL, "-32768", "32767"},
    {"int32", NULL, "-2147483648", "2147483647"},
    {"int64", NULL, "-9223372036854775808", "9223372036854775807"},
    {"uint", NULL, "0", NULL}, /* written by schemars for Rust */
    {"uint8", NULL, "0", "255"},
    {"uint16", NULL, "0", "65535"},
    {"uint32", NULL, "0", "4294967295"},
    {"uint64", NULL, "0", "18446744073709551615"},
};

const struct schema_format *schema_format(const char *name, size_t len) {
  for (size_t i = 0; i < ANE_COUNT(rows); i++)
    if (strlen(rows[i].name) == len && memcmp(rows[i].name, name, len) == 0) return &rows[i];
  return NULL;
}
