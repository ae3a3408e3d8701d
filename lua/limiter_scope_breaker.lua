-- limiter_scope_breaker: a bucket that is the circuit breaker of a scope.
--
-- Stored: the numbers BREAKER.
-- Events: open k FIRST MOST SENT  open the breaker: first probe after FIRST us, pauses double up to
--                                 MOST us. No effect if the breaker opened or closed after SENT
--         notSent k SLOT          the probe of this slot was not sent
--         close k SENT            a call sent then succeeded: close (0: in any case)

kinds.breaker = function()
  return {
    load = function(b, _, text)
      for _, name in ipairs(BREAKER) do b[name] = 0 end
      if text then restore(b, BREAKER, text) end
    end,
    wait = function(b) return b.probe, b.probe > 0 and 0 or 1 end,
    charge = function(b, _, _, slot)
      if b.probe > 0 then takeProbe(b, slot) end
    end,
    events = {
      open = openBreaker,
      notSent = refundProbe,
      close = function(b, sent) closeBreaker(b, sent == 0 and huge or sent) end,
    },
    save = function(b)
      if b.turned > 0 then keep(b, max(0, b.probe - now) + 10 * b.most + 60000000, encode(b, BREAKER)) end
    end,
    view = function(b) return b.probe > 0 and 0 or 1, 0, b.probe end,
  }
end
