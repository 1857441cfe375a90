"""Where the nouns that many calls begin with stand in the path: what a call is about comes behind."""

TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces"
NAMESPACE = NAMESPACES + "/{tenant}/{namespace}"
TOPICS = "/admin/v2/{domain}/{tenant}/{namespace}"
TOPIC = TOPICS + "/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"
ENTRIES = "/admin/v3/entries/persistent/{tenant}/{namespace}"
