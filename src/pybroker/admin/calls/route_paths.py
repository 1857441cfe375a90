"""Path prefixes that many routes share."""

TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces"
NAMESPACE = NAMESPACES + "/{tenant}/{namespace}"
TOPICS = "/admin/v2/{domain}/{tenant}/{namespace}"
TOPIC = TOPICS + "/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"
ENTRIES = "/admin/v3/entries/persistent/{tenant}/{namespace}"
