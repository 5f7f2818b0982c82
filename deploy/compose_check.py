"""Checks compose.yaml against the schema of the Compose specification. Usage: check.py SCHEMA FILE"""

import json
import sys

import jsonschema
import yaml

schema, file = sys.argv[1:]
with open(schema) as text:
    schema = json.load(text)
with open(file) as text:
    compose = yaml.safe_load(text)
# The schema is of an age when a file had no name yet.
compose.pop("name")
jsonschema.validate(compose, schema)
for name, service in compose["services"].items():
    assert "image" in service, f"{name} has no image"
print(f"{file} is a compose file with {', '.join(compose['services'])}")
