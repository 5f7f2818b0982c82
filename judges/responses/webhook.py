"""Webhooks before the official Python client: webhook.py SECRET, with a list of bodies and headers as input. It says what each tells."""

import json
import sys

from openai import OpenAI

client = OpenAI(api_key="none", webhook_secret=sys.argv[1])
for heard in json.load(sys.stdin):
    event = client.webhooks.unwrap(heard["body"], heard["headers"])
    print(event.type, event.data.id)
